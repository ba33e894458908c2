"""What can be reached from the names of modules, to any depth, as the garbage collector sees it.

Items of containers, attributes of objects and of classes, slots, closures, default arguments, frames of generators. Two walks
within one process are compared by identity. `gc.get_referents` calls tp_traverse (C API, Supporting Cyclic Garbage Collection),
and thereby no code of a package.
"""

from __future__ import annotations

import gc
import operator
import sys

from sockd_zygote.forks.module_kinds import MACHINERY, dict_descriptor, instance_dict, is_a
from sockd_zygote.top_levels import function_caches

ModuleType = type(sys)
FunctionType = type(instance_dict)
GeneratorType = type(each for each in "")
BuiltinType = type(len)
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Names = Mapping[str, Any]
    Way = Callable[[Any, list[Any]], bool]
    """Adds to a list what an object has of state in C; returns whether what it refers to is walked."""

ATOMS: frozenset[type] = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), ModuleType),
        *(type(sys._getframe()), type(instance_dict.__code__)),
    }
)
"""Types of values in which nothing is to be found; modules are walked by themselves."""
_EMPTY: tuple[Iterable[object], ...] = ([], (), range(0), "", b"", {}, {}.values(), {}.items(), set())
ITERATORS = tuple(type(iter(each)) for each in _EMPTY)
TLS_SETTINGS = ("check_hostname", "maximum_version", "minimum_version", "options", "verify_flags", "verify_mode")
OF_EVERYBODY = frozenset({*MACHINERY, "logging"})
"""Modules that are not walked, and whose functions and classes any import may have."""
IMMUTABLE_TYPE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: a class in C, such as `deque`; its objects hold what others put in. Since 3.12 some have a module."""
PLACES = frozenset({"lineno", "col_offset", "end_lineno", "end_col_offset"})
"""Attributes of nodes of a syntax tree."""
PIECE = 32
"""Bytes of a digest whose length is not its own."""
LARGEST = 1 << 20
"""Bytes of one array that are compared."""
MOST = 4_000_000
"""References that one walk follows."""


class Heap:
    """One walk. It keeps what it has found alive, so that an identity stands for one object.

    Attributes:
        inside: for each name of a module, what is reached from its value and from no other name's, in a fixed order;
        subclasses: classes of packages, each with its subclasses, by identity;
        standard_subclasses: those of the standard library, likewise."""

    def __init__(
        self, modules: Mapping[str, Names], foreign: Mapping[str, Names], skipped: Callable[[str, str], bool]
    ) -> None:
        """Args: modules: those that are walked; foreign: others, whose functions and objects are left out; skipped: whether a
        name, the second argument, of a module, the first, is left out."""
        self._foreign = set(map(id, foreign.values()))
        self._own = {name: id(names) for name, names in foreign.items() if name not in OF_EVERYBODY}
        self._ways = self._known_ways(foreign)
        self._dispatching = function_caches.dispatching_code()
        self._left = MOST
        self.subclasses: dict[int, list[type]] = {}
        self.standard_subclasses: dict[int, list[type]] = {}
        self.inside: dict[str, dict[str, list[Any]]] = {module: {} for module in modules}
        owners = owners_of(modules, skipped)
        self._seen = {*self._foreign, *map(id, modules.values()), id(sys.modules), *owners}
        for module, name, value in owners.values():
            self.inside[module][name] = self._walk(value)

    @property
    def complete(self) -> bool:
        """Whether all has been walked."""
        return self._left > 0

    def _walk(self, value: Any) -> list[Any]:
        found: list[Any] = []
        self._follow(gc.get_referents(value) if self._is_open(value, found) else [], found)
        return found

    def _follow(self, level: list[Any], found: list[Any]) -> None:
        """Add to what was found these objects, and all that is reached from them."""
        while level and self.complete:
            found += level
            self._left -= len(level)
            level = gc.get_referents(*[each for each in level if self._is_new(each, found)])

    def _is_new(self, value: Any, found: list[Any]) -> bool:
        """Whether what an object refers to is still to be found."""
        if id(value) in self._seen:
            return False
        if is_open := self._is_open(value, found):
            self._seen.add(id(value))
        return is_open

    def _is_open(self, value: Any, found: list[Any]) -> bool:
        """Whether what an object refers to is looked at. Its state in C is added to `found`, where it is known."""
        kind = type(value)
        if kind in self._ways:
            way = self._ways[kind]
        else:
            way = self._ways[kind] = self._class if issubclass(kind, type) else self._way_of_objects(kind)
        return way is not None and way(value, found)

    def _way_of_objects(self, kind: type) -> Way:
        trees = sys.modules.get("_ast")
        return self._node if trees is not None and issubclass(kind, trees.AST) else attributes_of(kind)

    def _node(self, value: Any, found: list[Any]) -> bool:
        """Follow the fields of a node of a syntax tree, but not its place in a file, which `ast.fix_missing_locations` adds."""
        self._seen.add(id(value))
        names = instance_dict(value) or {}
        self._follow([each for name, each in names.items() if name not in PLACES], found)
        return False

    def _class(self, value: type, found: list[Any]) -> bool:
        names = vars(type)["__dict__"].__get__(value)
        if "_flag_mask_" in names:  # the table of an `enum.Flag`, which caches combinations such as `re.I | re.X`
            self._seen.add(id(names.get("_value2member_map_")))
        module = home_of(value)
        is_of_packages = module and module.partition(".")[0] not in sys.stdlib_module_names
        listed = self.subclasses if is_of_packages else self.standard_subclasses
        listed[id(value)] = [value, *type.__subclasses__(value)]
        return True

    def _cache(self, value: Any, found: list[Any]) -> bool:
        """Caches of the standard library change no answer; one of a package may hold what code changes."""
        module = getattr(value.__wrapped__, "__module__", None)
        if type(module) is not str or module.partition(".")[0] not in sys.stdlib_module_names:
            self._seen.add(id(value))
            self._follow(function_caches.contents(value, self._is_own), found)
        return False

    def _is_own(self, value: Any) -> bool:
        """Whether a value is a function or a class of the code's own, and equal to itself alone."""
        if type(value) is FunctionType:
            return id(value.__globals__) in self._own.values()
        return is_a(value, type) and home_of(value) in self._own and has_identity(type(value))

    def _function(self, value: Any, found: list[Any]) -> bool:
        if value.__code__ is self._dispatching:
            self._seen.update(map(id, function_caches.dispatch_cells(value)))
        value.__dict__  # noqa: B018 -- made when it is first asked for
        # As are these; but since Python 3.14 by code of the package, if there are any, and with names for type checkers alone.
        if getattr(value, "__annotate__", None) is None:
            value.__annotations__  # noqa: B018
        return id(value.__globals__) not in self._foreign

    def _known_ways(self, foreign: Mapping[str, Names]) -> dict[type, Way | None]:
        """By type; None: nothing of it is looked at."""
        every = [each for name, names in foreign.items() for each in names.values() if home_of(each) == name]
        classes = [each for each in every if not vars(type)["__flags__"].__get__(each) & IMMUTABLE_TYPE]
        ways: dict[type, Way | None] = dict.fromkeys((*ATOMS, *classes))
        ways |= {FunctionType: self._function, GeneratorType: generator, BuiltinType: is_bound, bytearray: contents}
        ways |= dict.fromkeys(ITERATORS, place)
        if "abc" in sys.modules:
            # Caches of isinstance; `State` has the number of registrations.
            ways[type(vars(sys.modules["abc"].ABC)["_abc_impl"])] = None
        for module, name, way in (*OF_MODULES, ("_functools", "_lru_cache_wrapper", self._cache)):
            kind: Any = vars(sys.modules[module]).get(name) if module in sys.modules else None
            if is_a(kind, type):
                ways[kind] = way
        return ways


def owners_of(modules: Mapping[str, Names], skipped: Callable[[str, str], bool]) -> dict[int, tuple[str, str, Any]]:
    """Return the module and the name by which each value is reported: of a class its own module's, of others the first."""
    owners: dict[int, tuple[str, str, Any]] = {}
    for at_home in (True, False):
        for module, names in modules.items():
            for name, value in names.items():
                is_atom = type(value) in ATOMS or (type(value) is BuiltinType and not is_bound(value, []))
                if not is_atom and (not at_home or home_of(value) == module) and not skipped(module, name):
                    owners.setdefault(id(value), (module, name, value))
    return owners


def home_of(value: Any) -> str:
    """The module that has made a class; empty of anything else."""
    if not is_a(value, type):
        return ""
    name = vars(type)["__dict__"].__get__(value).get("__module__")
    return name if type(name) is str else ""


def has_identity(kind: type) -> bool:
    """Whether objects of a class are equal to themselves alone."""
    return not any("__eq__" in vars(type)["__dict__"].__get__(each) for each in kind.__mro__ if each is not object)


def attributes_of(kind: type) -> Way:
    """The way of objects in Python, whose dictionary the interpreter makes when it is first asked for: asking is no change."""
    descriptor = dict_descriptor(kind)
    if descriptor is None:
        return whole

    def way(value: Any, found: list[Any]) -> bool:
        try:
            descriptor.__get__(value)
        except (AttributeError, TypeError):
            pass  # another class's, or a proxy in C that asks what it stands for (ddtrace's)
        return True

    return way


def whole(value: Any, found: list[Any]) -> bool:
    return True


def is_bound(value: Any, found: list[Any]) -> bool:
    """Whether a function in C is the method of an object, such as `[].append`: of others nothing is looked at."""
    return not (value.__self__ is None or is_a(value.__self__, ModuleType) or is_a(value.__self__, type))


def generator(value: Any, found: list[Any]) -> bool:
    found.append(value.gi_frame.f_lasti if value.gi_frame is not None else None)
    return True


def place(value: Any, found: list[Any]) -> bool:
    found.append(operator.length_hint(value))
    return True


def text(value: Any, found: list[Any]) -> bool:
    found.append(repr(value))
    return True


def contents(value: Any, found: list[Any]) -> bool:
    with memoryview(value) as view:
        found.append(hash(view.tobytes()) if view.nbytes <= LARGEST else view.nbytes)
    return True


def numbers(value: Any, found: list[Any]) -> bool:
    """Describe an array of NumPy whose elements are not objects of Python."""
    if not value.dtype.hasobject:
        found.append(hash(value.tobytes()) if value.nbytes <= LARGEST else value.nbytes)
    return True


def random_state(value: Any, found: list[Any]) -> bool:
    found.append(hash(value.getstate()))
    return True


def generator_of_numbers(value: Any, found: list[Any]) -> bool:
    """Describe a bit generator of NumPy, whose state is a dictionary that is made anew for each question."""
    found.append(hash(repr(value.state)))
    return True


def in_memory(value: Any, found: list[Any]) -> bool:
    """Describe a file in memory; a subclass may run code when it is asked."""
    if not value.closed:
        found += [hash(value.getvalue()), value.tell()]
    return True


def hashed(value: Any, found: list[Any]) -> bool:
    found.append(value.digest() if value.digest_size else value.digest(PIECE))
    return True


def locked(value: Any, found: list[Any]) -> bool:
    found.append(value.locked())
    return True


def of_this_thread(value: Any, found: list[Any]) -> bool:
    """The attributes of a `threading.local` in the thread that imports; a subclass may run code when it is asked."""
    attributes = value.__dict__
    found += [*attributes, *attributes.values()]
    return True


def of_tls(value: Any, found: list[Any]) -> bool:
    kind: Any = type(value).__base__  # `_ssl._SSLContext`, which the properties of `ssl` convert
    found += [getattr(kind, name).__get__(value) for name in TLS_SETTINGS]
    found.append(repr(kind.cert_store_stats(value)))
    return True


OF_MODULES: tuple[tuple[str, str, Way | None], ...] = (
    ("_decimal", "Context", text),
    ("_hashlib", "HASH", hashed),
    ("_hashlib", "HASHXOF", hashed),
    ("_io", "BytesIO", in_memory),
    ("_io", "StringIO", in_memory),
    ("_thread", "_local", of_this_thread),
    ("_thread", "LockType", locked),
    ("array", "array", contents),
    ("itertools", "count", text),
    ("numpy", "ndarray", numbers),
    *(("numpy.random", name, generator_of_numbers) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")),
    ("random", "Random", random_state),
    ("ssl", "SSLContext", of_tls),
)
"""Module, type, and how its objects are looked at, if the module is loaded."""
