"""What the modules of a function's packages are in this process, name by name: runs in a sandbox, and no code of a package.

Two starts of one function are alike if their fingerprints are. Compared are names, types, values of plain constants, containers
to a depth of `DEPTH`, functions by their code, classes by their bases and attributes, objects by their class and the constants
in their `__dict__`. Left out is what differs between two starts of one closure: addresses, process ids, the order of sets, and
which submodules are bound to their packages. Times and random values are recognised by a second start
(`sockd.starts.zygotes.verification.result`).
"""

from __future__ import annotations

import hashlib
import re
import sys
import types

from sockd_zygote.forks.module_kinds import MACHINERY, OWN, RUNTIME, Kinds, instance_dict, is_a, namespace
from sockd_zygote.top_levels.state import CACHES

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

NOT_COMPARED = CACHES | {"inspect.modulesbyfile", "inspect._filesbymodname"}
"""Names of the standard library that change when code is used, and change no answer."""
KEPT_DUNDERS = frozenset({"__all__", "__version__", "__path__"})
"""Names with two underscores that are a package's own; the others are the interpreter's, or Cython's."""
LARGEST = 1 << 40
"""Integers above are taken for addresses."""
DEPTH = 2
"""The levels of containers in containers."""
MOST_ITEMS = 2000
"""The most items of one container that are described."""
MOST_CHARACTERS = 4096
"""The most characters of a constant's text that are compared, and with them its length."""
SHOWN = 100
"""Characters of a value that people are shown."""
MOST_PARTS = 64
"""The most parts of one value that are compared separately."""
HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class that was made by code, which may have a say in its attributes."""
MAIN = ("__main__", "__mp_main__")
"""Modules that `pickle` passes over."""
PIECE = 64
"""Characters of a long constant that are one part of it."""

HARMLESS = frozenset({"bool", "NoneType", "ellipsis"})
"""Kinds of constants that hold no secret."""

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_REPR: dict[type, Any] = {
    kind: kind.__repr__ for kind in (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
}
_OF_CLASS: Mapping[str, Any] = vars(type)
"""What `type` knows of a class, without its metaclass being asked."""

Names = dict[str, object]


class Fingerprint:
    """Describes modules. Remembers the digests of code that it has seen."""

    def __init__(self, kinds: Kinds, pids: Iterable[int] = ()) -> None:
        """Args: pids: of processes that the modules may have been imported in: these numbers are taken for each other."""
        self._kinds = kinds
        self._pids = frozenset(pids)
        self._codes: dict[int, tuple[types.CodeType, str]] = {}
        self._caches = caches()

    def modules(self, loaded: Mapping[str, Any]) -> dict[str, Any]:
        """Return the modules to be compared by name: of packages, of the standard library and of the function's code."""
        every = sorted(loaded.items())
        return {
            name: each for name, each in every if self._kinds.key_of(name, each) != RUNTIME and name not in MACHINERY
        }

    def names_of(self, name: str, module: Any) -> Names:
        """What each name of a module is, as nested tuples."""
        if not is_a(module, types.ModuleType):
            return {"": self.looks(module)}
        found: Names = {}
        called = namespace(module).get("__name__")  # of a copy, as eventlet makes of threading, the original's name
        for key, value in list(namespace(module).items()):
            if type(key) is not str or (key.startswith("__") and key not in KEPT_DUNDERS):
                continue
            if sys.modules.get(f"{name}.{key}") is value and is_a(value, types.ModuleType):
                continue  # a submodule, bound by its import
            if f"{name}.{key}" in NOT_COMPARED or f"{called}.{key}" in NOT_COMPARED:
                continue
            found[key] = self.looks(value, DEPTH, home=name)
            if self._kinds.key_of(name, module) == OWN and (place := place_when_pickled(value)):
                found[f"{key}, when it is pickled"] = ("constant", "str", place)
        return found

    def looks(self, value: Any, depth: int = DEPTH, home: str = "") -> object:
        """A value, described alike in each process in which it is equal.

        Args: home: the module whose classes are described whole."""
        try:
            return self._looks(value, depth, home)
        except Exception as error:  # what changes while it is looked at, or is no such thing
            return "error", type(error).__name__

    def _looks(self, value: Any, depth: int, home: str) -> object:
        kind = type(value)
        if kind is int and value in self._pids:
            return "constant", "int", "a process id"
        for constant, text_of in _REPR.items():
            if issubclass(kind, constant):
                return "constant", name_of(kind), constant_text(value, text_of)
        if issubclass(kind, type):
            return self._class(value, home)
        if issubclass(kind, types.FunctionType):
            return self._function(value, depth)
        if issubclass(kind, types.ModuleType):
            return "module", str(namespace(value).get("__name__"))
        if value is sys.modules:
            return ("sys.modules",)  # what is in it is compared by itself, but for the runtime's
        if issubclass(kind, dict):
            items = some(dict.items(value), depth)
            pairs = [(self.looks(key, 0), self.looks(each, depth - 1)) for key, each in items]
            return name_of(kind), dict.__len__(value) if depth else -1, tuple(sorted(pairs, key=repr))
        if issubclass(kind, (set, frozenset)):
            unordered: Any = set if issubclass(kind, set) else frozenset
            each_looks = [self.looks(each, 0) for each in some(unordered.__iter__(value), depth)]
            return name_of(kind), unordered.__len__(value) if depth else -1, tuple(sorted(each_looks, key=repr))
        if issubclass(kind, (list, tuple)):
            whole: Any = list if issubclass(kind, list) else tuple
            items = some(whole.__iter__(value), depth)
            return (
                name_of(kind),
                whole.__len__(value) if depth else -1,
                tuple(self.looks(each, depth - 1) for each in items),
            )
        if issubclass(kind, (staticmethod, classmethod)):
            return kind.__name__, self.looks(value.__func__, depth)
        if kind is property:
            return "property", self.looks(value.fget, 0), self.looks(value.fset, 0)
        return "object", name_of(kind), self._constants(instance_dict(value))

    def _class(self, value: type, home: str) -> object:
        attributes: Mapping[str, Any] = _OF_CLASS["__dict__"].__get__(value)
        module = attributes.get("__module__")
        bases = tuple(name_of(base) for base in _OF_CLASS["__mro__"].__get__(value))
        if not home or module != home:
            return "class", bases
        own = [(name, each) for name, each in list(attributes.items()) if not is_private_to_python(name)]
        return "class", bases, tuple(sorted((name, self.looks(each, 1)) for name, each in own))

    def _function(self, value: types.FunctionType, depth: int) -> object:
        defaults = tuple(
            ("cache",) if id(each) in self._caches else self.looks(each, min(depth, 1))  # may be its own globals()
            for each in value.__defaults__ or ()
        )
        return "function", str(value.__module__), value.__qualname__, self._code(value.__code__), defaults

    def _code(self, code: types.CodeType) -> str:
        """A digest of what code does; two with the same digest do the same."""
        known = self._codes.get(id(code))
        if known is None:
            constants = [self._code(c) if type(c) is types.CodeType else self.looks(c, 1) for c in code.co_consts]
            text = repr((code.co_qualname, code.co_code, code.co_names, constants))
            known = self._codes[id(code)] = code, digest(text)
        return known[1]

    def _constants(self, attributes: Mapping[str, Any] | None) -> object:
        """Return the attributes of an object that are constants."""
        if not attributes:
            return ()
        plain = [(name, value) for name, value in some(attributes.items(), 1) if type(value) in _REPR]
        return tuple(sorted((str(name), self.looks(value, 0)) for name, value in plain))


def caches() -> frozenset[int]:
    """Return the ids of the containers that `NOT_COMPARED` names: functions have some of them as default arguments
    (`logging.shutdown`)."""
    found = set()
    for path in NOT_COMPARED:
        module, _, name = path.rpartition(".")
        if is_a(sys.modules.get(module), types.ModuleType):
            value = namespace(sys.modules[module]).get(name)
            if type(value) in (dict, list, set):
                found.add(id(value))
    return frozenset(found)


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def place_when_pickled(value: Any) -> str:
    """Return the module by which `pickle` names a function in C that names none, such as SciPy's: the first that has it, in the
    order of `sys.modules`. Empty: it is something else. Runs no code, as no class in Python is asked."""
    kind = type(value)
    table = namespace(sys.modules["copyreg"]).get("dispatch_table") if "copyreg" in sys.modules else None
    if not isinstance(table, dict) or kind not in table or _OF_CLASS["__flags__"].__get__(kind) & HEAP_TYPE:
        return ""
    name = getattr(value, "__name__", None)
    if type(name) is not str or getattr(value, "__module__", None) is not None:
        return ""
    every = [(place, each) for place, each in sys.modules.items() if place not in MAIN and is_a(each, types.ModuleType)]
    return next((place for place, each in every if namespace(each).get(name) is value), "")


def digest_of(names: Names) -> str:
    """Return the digest of all names of a module."""
    whole = hashlib.blake2b(digest_size=8)
    for name in sorted(names):
        whole.update(f"{name}={names[name]!r}\n".encode("utf-8", "backslashreplace"))
    return whole.hexdigest()


def shown(look: Any, known: Mapping[str, str] | None = None) -> str:
    """What `looks` gave, in a few words for people.

    Args:
        known: names of values that may be secrets, by `constant_text`. No other value is shown then: it may be a part of one."""
    kind = look[0]
    if kind == "constant":
        text = constant_shown(look, known)
    elif kind == "class":
        text = f"the class {look[1][0]}"
    elif kind == "function":
        text = f"the function {look[1]}.{look[2]}"
    elif kind == "module":
        text = f"the module {look[1]}"
    elif kind == "object":
        text = f"an object of {look[1]}"
    elif len(look) == 3 and isinstance(look[1], int) and look[1] >= 0:
        text = f"a {kind} of {look[1]}" + items_shown(look, known)
    else:
        text = f"a {kind}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def parts(look: Any, *, is_secret: bool = False) -> dict[str, str]:
    """Return what a value consists of, one level deep, in words and as short digests: two values that people are shown alike
    differ in some of it.

    Args:
        is_secret: whether keys may be parts of a secret, and are named by their number."""
    return {name: digest(repr(part))[:8] for name, part in list(parts_of(look, is_secret=is_secret))[:MOST_PARTS]}


def parts_of(look: Any, *, is_secret: bool) -> Iterator[tuple[str, object]]:
    kind, *rest = look
    if kind == "constant":
        yield "its type", look[1]
        for begin in range(0, len(look[2]), PIECE):
            yield f"the characters from {begin} to {begin + PIECE}", look[2][begin : begin + PIECE]
    elif kind == "function":
        yield "its code", look[3]
        yield from ((f"the default argument {number}", each) for number, each in enumerate(look[4], 1))
    elif kind == "property":
        yield from zip(("its getter", "its setter"), rest, strict=True)
    elif kind == "class":
        yield "its bases", look[1]
        yield from ((f"the attribute {name}", each) for name, each in look[2:] and look[2])
    elif kind == "object":
        yield "its class", look[1]
        yield from ((f"the attribute {name}", each) for name, each in look[2])
    elif len(look) == 3 and isinstance(look[1], int):
        yield "its length", look[1]
        for number, each in enumerate(look[2]):
            is_pair = isinstance(each[0], tuple)  # of a mapping; items of others are looks, which begin with a kind
            name = shown(each[0]) if is_pair and not is_secret else f"{number}"
            yield f"the item {name}", each


def constant_shown(look: Any, known: Mapping[str, str] | None) -> str:
    if known is None or look[1] in HARMLESS:
        return str(look[2])
    return known.get(look[2], f"an {look[1]}" if look[1] == "int" else f"a {look[1]}")


def items_shown(look: Any, known: Mapping[str, str] | None) -> str:
    """The first items of a list, a tuple or a set, as far as they are constants."""
    if known is not None or not look[0].endswith(("list", "tuple", "set")):
        return ""
    plain = [each[2] for each in look[2][:8] if each[0] == "constant"]
    return f" ({', '.join(plain)}{', …' if look[1] > len(plain) else ''})" if plain else ""


def name_of(kind: type) -> str:
    module = _OF_CLASS["__dict__"].__get__(kind).get("__module__")
    if type(module) is not str:  # a class in C
        module = _OF_CLASS["__module__"].__get__(kind)
    qualname = _OF_CLASS["__qualname__"].__get__(kind)
    return str(qualname) if module == "builtins" else f"{module}.{qualname}"


def is_private_to_python(name: object) -> bool:
    """Names that a class has from the interpreter or from `abc`."""
    return type(name) is not str or name.startswith(("__", "_abc_"))


def constant_text(value: Any, text_of: Callable[[Any], str]) -> str:
    if is_a(value, int) and abs(int.__index__(value)) > LARGEST:
        return "a large number"
    text = _ADDRESS.sub("0x…", text_of(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[:SHOWN]}… {len(text)} characters, {digest(text)}"


def some(items: Iterable[Any], depth: int) -> list[Any]:
    """The first of them; none below the last depth."""
    return list(items)[:MOST_ITEMS] if depth > 0 else []
