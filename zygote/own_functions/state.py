"""A snapshot of what imports can see and other code may change, by identity: within one process it is made in milliseconds.

A recording (`top_level`) compares a snapshot before an import with the one after the import before it: whatever differs has been
changed by the function's own code. Compared are the names of modules, and to a depth of `DEPTH` attributes of their classes,
items of containers and attributes of objects, and `interpreter.settings`. Caches that change without an effect are left out by
name.
"""

from __future__ import annotations

import operator
import sys

from sockd_zygote.forks.module_kinds import MACHINERY, instance_dict, is_a, namespace
from sockd_zygote.own_functions import interpreter

ModuleType = type(sys)
FunctionType = type(instance_dict)
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

DEPTH = 3
MOST_ITEMS = 2000
"""Items of one container that are compared; beside them its length."""
MOST_TOLD = 3
CACHES = frozenset(
    {
        *("re._cache", "re._cache2", "encodings._cache", "linecache.cache", "sys.path_importer_cache", "sys.modules"),
        *("typing._cleanups", "functools._lru_cache_wrapper", "logging._handlers", "logging._handlerList"),
        *("ctypes._pointer_type_cache", "urllib.parse._parse_cache", "struct._cache", "sys.last_type"),
        *("sys.last_value", "sys.last_traceback", "sys.last_exc", "os.environ", "os.environb", "posix.environ"),
        *("threading._dangling", "threading._shutdown_locks", "threading._active", "threading._limbo"),
        *("threading._main_thread", "ctypes._c_functype_cache", "logging._startTime"),
    }
)
"""Names that change when code is used, and change no answer; or that `interpreter.settings` compares by value."""
IGNORED = frozenset({"__warningregistry__", "__builtins__"})
ATOMS = frozenset(
    {*(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), FunctionType, ModuleType, type(len))}
)
BY_VALUE = frozenset({bool, int, float, complex, str, bytes})
MISSING = object()


class State:
    """One snapshot. It keeps what it has seen alive, so that an identity stands for one object."""

    def __init__(self, is_compared: Callable[[str, Any], bool], besides: Mapping[str, object] | None = None) -> None:
        """Args: is_compared: (name, module) -> whether the module is one that the function's code may change; besides: further
        settings."""
        self._names: dict[str, dict[str, Any]] = {}
        self._inside: dict[str, dict[str, list[Any]]] = {}
        for name, module in list(sys.modules.items()):
            if name not in MACHINERY and is_a(module, ModuleType) and is_compared(name, module):
                self._names[name] = names = dict(namespace(module))
                self._inside[name] = contents_of(name, names)
        self._modules = {name: None for name, module in list(sys.modules.items()) if module is None}
        self.settings = {**interpreter.settings(), **interpreter.random_states(), **(besides or {})}

    def changes(self, later: State) -> list[str]:
        """Return what `later` has otherwise, in words; modules that it has besides are no change."""
        return [*self._changed_names(later), *self._changed_settings(later)]

    def _changed_names(self, later: State) -> Iterator[str]:
        for name in later._modules.keys() - self._modules.keys():
            yield f"sys.modules[{name!r}]"
        for name, before in self._names.items():
            after = later._names.get(name)
            if after is None:
                if name not in later._modules:
                    yield f"sys.modules[{name!r}]"
                continue
            if not are_same(before, after):
                yield from (f"{name}.{key}" for key in changed_keys(name, before, after))
            for key, inside in self._inside[name].items():
                others = later._inside[name].get(key)
                if others is not None and not are_same_items(inside, others):
                    yield f"{name}.{key}"

    def _changed_settings(self, later: State) -> Iterator[str]:
        for name, value in self.settings.items():
            if name in later.settings and later.settings[name] != value:
                yield changed_setting(name, value, later.settings[name])


def changed_setting(name: str, before: object, after: object) -> str:
    """Return a setting's name, and where it is a mapping the first key that differs; of loggers the root, which all share."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return name
    keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    first = "root" if name == "loggers" and "root" in keys else min(keys)
    return f"{name}[{first!r}]"


def in_words(changes: list[str]) -> str:
    """Return the first changes; empty if there are none."""
    names = sorted(set(changes))
    told = ", ".join(names[:MOST_TOLD])
    return f"{told} and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else told


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
        if key in IGNORED or f"{module}.{key}" in CACHES or is_same(before.get(key, MISSING), value):
            continue
        if key not in before:
            if is_a(value, ModuleType) and sys.modules.get(f"{module}.{key}") is value:
                continue
            if isinstance(promised, (list, tuple)) and key in promised:
                continue
        yield key


def contents_of(module: str, names: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what is inside the values of a module's names, by name, flat."""
    found: dict[str, list[Any]] = {}
    for key, value in names.items():
        kind = type(value)
        if kind in ATOMS or key in IGNORED or f"{module}.{key}" in CACHES:
            continue
        inside: list[Any] = []
        if issubclass(kind, type):
            attributes = vars(type)["__dict__"].__get__(value) or {}  # None: a class in C that was never made ready
            if attributes.get("__module__") == module:
                flatten(dict(attributes), DEPTH, inside)
        else:
            flatten(value, DEPTH, inside)
        if inside:
            found[key] = inside
    return found


def flatten(value: Any, depth: int, inside: list[Any]) -> None:
    """Add the items of a container or the attributes of an object, and what is in them."""
    kind = type(value)
    if kind in ATOMS or issubclass(kind, type) or kind.__module__ == "logging":
        return  # loggers are compared by value
    if issubclass(kind, dict):
        items = list(dict.items(value))[:MOST_ITEMS]
        within = [each for _, each in items]
        inside.append(dict.__len__(value))
        inside += [key for key, _ in items]
    elif issubclass(kind, (list, tuple, set, frozenset)):
        base: Any = next(each for each in (list, tuple, set, frozenset) if issubclass(kind, each))
        within = list(base.__iter__(value))[:MOST_ITEMS]
        inside.append(base.__len__(value))
    else:
        attributes = instance_dict(value)
        if not attributes:
            return
        items = list(attributes.items())[:MOST_ITEMS]
        within = [each for _, each in items]
        inside += [key for key, _ in items]
    inside += within
    if depth > 1:
        for each in within:
            flatten(each, depth - 1, inside)
