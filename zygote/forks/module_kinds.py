"""Where a module is from, and its names, without running code of it: runs in sandboxes."""

from __future__ import annotations

import sys

ModuleType = type(sys)
FunctionType = type(lambda: None)
GetSetDescriptor = type(vars(FunctionType)["__code__"])
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STORE = "/packages/"
"""Where the distributions are: sockd.starts.packages.distribution.SANDBOX_STORE."""
STANDARD, OWN, RUNTIME = "", "(code)", "(runtime)"
"""What stands for the standard library, for the function's code and for sockd's runtime instead of a distribution's key."""
PREFIXES = tuple({f"{prefix}/lib/python" for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)})
SITE = ("/site-packages/", "/dist-packages/")
BUILT_IN = frozenset({"built-in", "frozen"})
RUNTIME_PACKAGE = "sockd_zygote"

MACHINERY = frozenset(
    {"sys", "gc", "_imp", "_frozen_importlib", "_frozen_importlib_external", "importlib._bootstrap"}
    | {"importlib._bootstrap_external", "_thread", "_weakref", "_io", "marshal", "_signal", "runpy", "site"}
)
"""Modules of the interpreter that hold the process's own state; what code may change of it is in `interpreter.settings`."""

_OF_MODULE: Mapping[str, Any] = vars(ModuleType)
_OF_CLASS: Mapping[str, Any] = vars(type)
"""What `type` knows of a class, without its metaclass being asked."""


class Kinds:
    """Tells the distribution of a module. Args of an image: `roots`: (directory with a slash at its end, key) pairs."""

    def __init__(self, roots: list[tuple[str, str]] | None = None) -> None:
        self._roots = roots or []
        self.origins: dict[str, str] = {}
        """Files that modules were loaded from, by name: some put an object in their place that does not tell (humanfriendly)."""

    def key_of(self, name: str, module: Any) -> str:
        """Return the key of a module's distribution, STANDARD, OWN or RUNTIME. What is of unknown origin is the function's
        own."""
        if name.partition(".")[0] == RUNTIME_PACKAGE or name == "__main__":
            return RUNTIME
        origin = (origin_of(module) if is_a(module, ModuleType) else "") or self.origins.get(name, "")
        if not origin and "." in name:  # made by its package, as six.moves is
            above = name.partition(".")[0]
            return self.key_of(above, sys.modules.get(above))
        return self.key_of_file(origin)

    def key_of_file(self, origin: str) -> str:
        """Return the key of a file's distribution, STANDARD or OWN."""
        for root, key in self._roots:
            if origin.startswith(root):
                return key
        if origin.startswith(STORE):
            return origin.split("/", 3)[2]
        if origin in BUILT_IN or (origin.startswith(PREFIXES) and not any(part in origin for part in SITE)):
            return STANDARD
        return OWN


def origin_of(module: Any) -> str:
    """Return the file that a module says it is from, or the directory of a namespace package."""
    names = namespace(module)
    origin = names.get("__file__") or getattr(names.get("__spec__"), "origin", None)
    return origin if isinstance(origin, str) else place_of_namespace(names)


def place_of_namespace(names: Mapping[str, Any]) -> str:
    """Return the first directory of a namespace package, with a slash at its end."""
    path = names.get("__path__")
    parts = getattr(path, "_path", path)
    return f"{parts[0]}/" if isinstance(parts, list) and parts and isinstance(parts[0], str) else ""


def namespace(module: Any) -> dict[str, Any]:
    """A module's names. Not by its own attribute: a lazy module would be loaded by that."""
    names: dict[str, Any] = _OF_MODULE["__dict__"].__get__(module)
    return names


def instance_dict(value: object) -> Mapping[str, Any] | None:
    """An object's own attributes, if the interpreter keeps them, and no property of its class is in the way."""
    descriptor = dict_descriptor(type(value))
    try:
        return descriptor.__get__(value) if descriptor is not None else None
    except (AttributeError, TypeError):  # another class's, or a proxy in C that asks what it stands for (ddtrace's)
        return None


def dict_descriptor(kind: type) -> Any:
    """What reads the attributes of a class's objects from where the interpreter keeps them; None: nothing does."""
    for each in _OF_CLASS["__mro__"].__get__(kind):
        descriptor = _OF_CLASS["__dict__"].__get__(each).get("__dict__")
        if descriptor is not None:
            return descriptor if type(descriptor) is GetSetDescriptor else None
    return None


def is_a(value: object, kind: type) -> bool:
    """isinstance, without asking the value for its __class__: a lazy object would load what it stands for."""
    return issubclass(type(value), kind)
