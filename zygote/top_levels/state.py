"""A snapshot of what imports can see and other code may change, by identity: within one process it is made in milliseconds.

A recording (`top_level`) compares a snapshot before an import with the one after the import before it: whatever differs has been
changed by the function's own code. Compared are the names of modules, all that can be reached from them (`heap`), context
variables, and `interpreter.settings`. Caches that change without an effect are left out by name.
"""

from __future__ import annotations

import operator
import sys

from sockd_zygote.forks.module_kinds import MACHINERY, is_a, namespace
from sockd_zygote.top_levels import interpreter, platform_caches, process
from sockd_zygote.top_levels.heap import Heap, home_of

ModuleType = type(sys)
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

ORDERS = ("lt", "le", "gt", "ge")
CACHES = frozenset(
    {
        *("re._cache", "re._cache2", "encodings._cache", "linecache.cache", "sys.path_importer_cache", "sys.modules"),
        *("typing._cleanups", "functools._lru_cache_wrapper", "logging._handlers", "logging._handlerList"),
        *("ctypes._pointer_type_cache", "urllib.parse._parse_cache", "struct._cache", "sys.last_type"),
        *("sys.last_value", "sys.last_traceback", "sys.last_exc", "os.environ", "os.environb", "posix.environ"),
        *("threading._dangling", "threading._shutdown_locks", "threading._active", "threading._limbo"),
        *("threading._main_thread", "ctypes._c_functype_cache", "logging._startTime"),
        *("inspect.modulesbyfile", "inspect._filesbymodname", "threading._counter"),
        # Its __del__ has _active as a default value, from CPython 3.12 on: the main thread, and what standard error has written.
        *("contextvars.Context.decimal_context", "threading._DeleteDummyThreadOnDel"),
        # Tables and patterns that the standard library makes at first use, the same for everybody:
        *("urllib.parse._hextobyte", "urllib.parse._typeprog", "urllib.parse._hostprog", "urllib.parse._portprog"),
        *("base64._b32tab2", "base64._b32rev", "base64._a85chars", "base64._a85chars2", "base64._b85chars"),
        *("base64._b85chars2", "base64._b85dec", "ftplib._150_re", "ftplib._227_re", "pkgutil._NAME_PATTERN"),
        *("posixpath._varprog", "posixpath._varprogb", "zipfile._crctable", "functools._convert"),
        *("os.path._varprog", "os.path._varprogb", "_strptime._regex_cache", "_strptime._TimeRE_cache"),
        *("posixpath._varsub", "posixpath._varsubb", "os.path._varsub", "os.path._varsubb"),  # CPython 3.14's
        *(f"platform.{name}" for name in platform_caches.CACHES),
        # Functions that `functools.total_ordering` gives the name of the method that they stand for, which is always the same:
        *(f"functools._{one}_from_{other}" for one in ORDERS for other in ORDERS),
    }
)
"""Names that change when code is used, and change no answer; or that `interpreter.settings` compares by value."""
IGNORED = frozenset({"__warningregistry__", "__builtins__"})
BY_VALUE = frozenset({bool, int, float, complex, str, bytes})
MISSING = object()
VARIABLES = "os.environ"
"""The setting of `interpreter.settings` with the environment variables."""
WHAT_RUNS = "what runs"
RUNS_IN = ("the running event loop", "the current greenlet")
CONTEXT = "contextvars.Context"
"""In the place of a module: the values of context variables."""


class State:
    """One snapshot. It keeps what it has seen alive, so that an identity stands for one object."""

    def __init__(self, is_compared: Callable[[str, Any], bool], besides: Mapping[str, object] | None = None) -> None:
        """Args: is_compared: (name, module) -> whether the module is one that the function's code may change; besides: further
        settings."""
        loaded = {name: module for name, module in list(sys.modules.items()) if is_a(module, ModuleType)}
        compared = {
            **{
                name: namespace(each)
                for name, each in loaded.items()
                if name not in MACHINERY and is_compared(name, each)
            },
            CONTEXT: context_variables(),
        }
        foreign = {name: namespace(each) for name, each in loaded.items() if name not in compared or name == "logging"}
        self._names = {name: dict(names) for name, names in compared.items()}
        self._besides = process.names_of_interpreter() | {WHAT_RUNS: dict(zip(RUNS_IN, process.running(), strict=True))}
        self._of_process = process.of_this_process()
        self.next_thread = process.next_thread()
        self._blocked = {name for name, module in list(sys.modules.items()) if module is None}
        self._heap = Heap(compared, foreign, is_left_out)
        self.settings = {
            **interpreter.settings(),
            **interpreter.random_states(),
            "registrations with abstract classes": sys.modules["abc"].get_cache_token(),
            **(besides or {}),
        }

    def changes(self, later: State, *, but: tuple[str, ...] = ()) -> list[str]:
        """Return what `later` has otherwise, in words; modules and subclasses that it has besides are no change.

        Args: but: settings that are not compared."""
        found = [*self._changed_names(later), *self._changed_objects(later), *self._changed_settings(later, but)]
        return found or self._changed_besides(later, but)

    def changed_variables(self, later: State) -> set[str]:
        """Return the names of environment variables that have another value in `later`, or are in one of both alone."""
        before, after = self.settings[VARIABLES], later.settings[VARIABLES]
        assert isinstance(before, dict) and isinstance(after, dict)
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    def new_subclasses(self, later: State) -> list[str]:
        """Return the classes of packages that have other subclasses in `later`, in words."""
        before, after = self._heap.subclasses, later._heap.subclasses
        changed = [
            before[key][0] for key in before.keys() & after.keys() if not are_same_items(before[key], after[key])
        ]
        return [f"subclasses of {home_of(each)}.{type.__dict__['__qualname__'].__get__(each)}" for each in changed]

    def derived_from(self, later: State) -> set[int]:
        """Return the ids of the classes that have other subclasses in `later`, of the standard library also."""
        pairs = [
            (self._heap.subclasses, later._heap.subclasses),
            (self._heap.standard_subclasses, later._heap.standard_subclasses),
        ]
        return {
            key
            for before, after in pairs
            for key in before.keys() & after.keys()
            if not are_same_items(before[key], after[key])
        }

    def new_libraries(self, later: State) -> list[str]:
        """Return the name of the setting, if `later` has mapped other shared libraries than extension modules. Those are a part
        of the modules that an import loads: the first library of a name decides what later ones get."""
        before, after = self.settings[interpreter.LIBRARIES], later.settings[interpreter.LIBRARIES]
        assert isinstance(before, list) and isinstance(after, list)
        suffixes = tuple(sys.modules["_imp"].extension_suffixes()[:-1])  # the last one is that of all libraries
        are_others = any(not path.endswith(suffixes) for path in set(after) ^ set(before))
        return [interpreter.LIBRARIES] if are_others else []

    def _changed_names(self, later: State) -> Iterator[str]:
        for name in later._blocked - self._blocked:
            yield f"sys.modules[{name!r}]"
        for name, before in self._names.items():
            after = later._names.get(name)
            if after is None:
                if name not in later._blocked:
                    yield f"sys.modules[{name!r}]"
                continue
            if not are_same(before, after):
                yield from (f"{name}.{key}" for key in changed_keys(name, before, after))

    def _changed_objects(self, later: State) -> Iterator[str]:
        """What is reached from names that are the same."""
        if not (self._heap.complete and later._heap.complete):
            yield "more objects than are compared"
        for name, inside in self._heap.inside.items():
            others = later._heap.inside.get(name, {})
            for key in inside.keys() & others.keys():
                if not are_same_items(inside[key], others[key]):
                    yield f"{name}.{key}"

    def _changed_besides(self, later: State, but: tuple[str, ...]) -> list[str]:
        """Return what is changed where nothing else is: names of the interpreter, and what the kernel knows of the process. (What
        has another name is found by that, too.)"""
        before, after = self._of_process, later._of_process
        changed = [name for name in before if name not in (*but, process.DESCRIPTORS) and before[name] != after[name]]
        if not process.are_same_descriptors(before[process.DESCRIPTORS], after[process.DESCRIPTORS]):
            changed.append(process.DESCRIPTORS)
        for module, names in self._besides.items():
            others = later._besides.get(module, names)
            if not are_same(names, others):
                every = names.keys() | others.keys()
                keys = [key for key in every if not is_same(names.get(key, MISSING), others.get(key, MISSING))]
                changed += [key if module == WHAT_RUNS else f"{module}.{key}" for key in keys]
        return changed

    def _changed_settings(self, later: State, but: tuple[str, ...]) -> Iterator[str]:
        for name, value in self.settings.items():
            if name in later.settings and name not in but and later.settings[name] != value:
                yield changed_setting(name, value, later.settings[name])


def is_left_out(module: str, name: str) -> bool:
    return name in IGNORED or f"{module}.{name}" in CACHES


def context_variables() -> dict[str, Any]:
    """Return the values of the context by the names of their variables."""
    contexts = sys.modules.get("_contextvars")
    return {each.name: value for each, value in contexts.copy_context().items()} if contexts else {}


def changed_setting(name: str, before: object, after: object) -> str:
    """Return a setting's name, and where it is a mapping the first key that differs; of loggers the root, which all share."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return name
    keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    first = "root" if name == "loggers" and "root" in keys else min(keys)
    return f"{name}[{first!r}]"


def are_same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before.values(), after.values()))


def are_same_items(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(map(is_same, before, after))


def is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in BY_VALUE and one == other)


def changed_keys(module: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield names with other values; but for a submodule that an import binds to its package, and a name of `__all__` that a
    package makes when it is first asked for (PEP 562)."""
    promised = before.get("__all__")
    for key in before.keys() | after.keys():
        value = after.get(key, MISSING)
        if is_left_out(module, key) or is_same(before.get(key, MISSING), value):
            continue
        if key not in before:
            if is_a(value, ModuleType) and sys.modules.get(f"{module}.{key}") is value:
                continue
            if isinstance(promised, (list, tuple)) and key in promised:
                continue
        yield key
