"""What botocore makes of its own data for a first client of S3, made ahead in a Zygote: endpoints' rules, and methods' names.

The rules are 400 objects, made of the file that `botocore_data` has read ahead. They refer to its content, which a function could
change before its client is made: so they are used once, by the client for which the loader was asked for that content, if nothing
else has asked for it. The names are looked up where botocore would work them out, and kept in the cache where it would keep
them. The patterns that it looks for are compiled ahead, too: `re` keeps them.

As in `botocore_data`, functions are replaced in each start, and call the original ones wherever anything on the way was changed.
"""

from __future__ import annotations

import sys

from sockd_zygote.handlers import botocore_data

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

RULES, MODEL = "endpoint-rule-set-1", "service-2"
CHECKS = "is_valid_endpoint_url", "validate_region_name"
"""Functions of botocore.utils that compile a pattern each time."""


class Rules:
    """Parts of `botocore.endpoint_provider` as they are without this."""

    def __init__(self, provider: ModuleType) -> None:
        """Raises: AttributeError, of another botocore than this knows."""
        self.creator, self.create = provider.RuleCreator, provider.RuleCreator.create.__func__
        self.kinds = provider.TreeRule, provider.EndpointRule, provider.ErrorRule, provider.BaseRule
        self.first = self.state()

    def state(self) -> list[object]:
        """What decides how a rule is made; equal lists make the same."""
        chosen = [self.creator.__dict__.get(name) for name in ("tree", "endpoint", "error")]
        return [*chosen, *(each.__dict__.get(name) for each in self.kinds for name in ("__init__", "__new__"))]


class Names:
    """Parts of `botocore` as they are without this."""

    def __init__(self, package: ModuleType) -> None:
        """Raises: AttributeError, ValueError, of another botocore than this knows."""
        self.xform_name = package.xform_name
        separator, self.cache = self.xform_name.__defaults__
        if separator != "_":
            raise ValueError(separator)


_rules: Rules | None = None
_names: Names | None = None
_made: dict[int, tuple[list[Any], Any]] = {}
"""Rules, by the id of the list of those below; with this list."""
_known: dict[str, str] = {}
"""Names of methods, by those of operations."""


def attend(module: ModuleType, name: str) -> None:
    """Have a part of botocore, which was imported just now, look here first, if it is of an installed package."""
    global _rules, _names
    if not str(getattr(module, "__file__", "")).startswith(botocore_data.ROOT):
        return
    try:
        if name == "botocore":
            _names = Names(module)
            own: Any = xform_name
            own.__defaults__ = _names.xform_name.__defaults__
            botocore_data.replace(module, _names.xform_name, own)
        else:
            _rules = Rules(module)
            botocore_data.name_as(create, _rules.create)
            _rules.creator.create = classmethod(create)
    except (AttributeError, ValueError, TypeError):
        return


def prepare() -> None:
    """In a Zygote, before it forks: make what a first client needs. What fails is made by each client."""
    try:
        if _rules is not None and not _made and _rules.state() == _rules.first:
            for rule in botocore_data.read_ahead(RULES).get("rules", ()):
                if type(rule.get("rules")) is list:
                    _made[id(rule["rules"])] = rule["rules"], _rules.create(_rules.creator, **rule)
        if _names is not None and not _known:
            cache = dict(_names.cache)
            for operation in botocore_data.read_ahead(MODEL).get("operations", ()):
                _known[operation] = _names.xform_name(operation, "_", cache)
        compile_patterns()
    except Exception as error:
        print(
            f"sockd: parts of botocore's clients are not made ahead: {type(error).__name__}: {error}", file=sys.stderr
        )
        for store in (_made, _known):
            store.clear()


def compile_patterns() -> None:
    """Have `re` know the patterns of CHECKS."""
    expressions, utils = sys.modules.get("re"), sys.modules.get("botocore.utils")
    if expressions is None or utils is None:
        return
    for name in CHECKS:
        code: Any = getattr(getattr(utils, name, None), "__code__", None)
        for constant in code.co_consts if code is not None else ():
            if type(constant) is str and constant.startswith("^"):
                expressions.compile(constant, expressions.IGNORECASE if "IGNORECASE" in code.co_names else 0)


def create(cls: Any, /, **kwargs: Any) -> Any:
    """Stand for `RuleCreator.create`."""
    rules = _rules
    assert rules is not None
    if _made:
        below = kwargs.get("rules")
        made = _made.pop(id(below), None)
        if (
            made is not None
            and made[0] is below
            and is_first_use()
            and cls is rules.creator
            and rules.state() == rules.first
        ):
            return made[1]
    return rules.create(cls, **kwargs)


def is_first_use() -> bool:
    """Whether the rules' content was asked for once, as for a client: no code has had it before."""
    return botocore_data.asked == {"load_service_model": 1, "load_data_with_path": 1}


def xform_name(name: Any, sep: Any = "_", _xform_cache: Any = None) -> Any:
    """Stand for the function of this name in `botocore`, which keeps what it has found."""
    names = _names
    assert names is not None
    if sep == "_" and _xform_cache is names.cache and type(name) is str and name in _known:
        return _xform_cache.setdefault((name, sep), _known[name])
    return names.xform_name(name, sep, _xform_cache)
