"""What the modules of a function's packages look like, name by name: deployed beside the function, standard library only.

Two starts of one function are equal if their fingerprints are. Left out is what differs between two starts without any
sharing: ids, times, random state, and which modules are bound as attributes of their packages.
"""

from __future__ import annotations

import copyreg
import hashlib
import json
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterable
from typing import Any

STORE = "/packages/"
"""Below it lies what pip would call site-packages."""
CONSTANTS = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
LARGEST = 1 << 40
"""Integers above are taken for ids of objects, which differ with the heap's layout."""
DEPTH = 2
"""Of containers in containers."""
ITEMS = 200
"""Of one container that are looked at."""
SHAKEN = [bytes(2 * size) for size in os.urandom(8000)]
"""Of all sizes that Python's allocator knows: moves what is imported after this module to other addresses, so that orders of sets
of objects without a `__hash__` are seen to be noise."""


def take(answer: str, also: Iterable[str] = ()) -> dict[str, object]:
    """The fingerprint of what is loaded.

    Args: answer: an expression whose value, or whose error, is part of it; also: modules to import before."""
    for name in also:
        __import__(name)
    loaded = {name: module for name, module in list(sys.modules.items()) if _is_of_a_package(module)}
    return {
        "answer": _evaluated(answer),
        "modules": {name: names_of(module) for name, module in loaded.items()},
        "registries": registries(),
    }


def names_of(module: types.ModuleType) -> dict[str, str]:
    """A digest of each name's value, without those that the interpreter and Cython keep of a module."""
    values = [(name, value) for name, value in vars(module).items() if not name.startswith("__")]
    return {name: _digest(looks(value)) for name, value in values if not _is_a(value, types.ModuleType)}


def registries() -> dict[str, object]:
    """What packages change in the standard library."""
    return {
        "copyreg": sorted(str(key) for key in copyreg.dispatch_table),
        "logging": [type(handler).__qualname__ for handler in logging.getLogger().handlers],
        "meta_path": [type(finder).__qualname__ for finder in sys.meta_path],
        "warnings": sorted(str(entry[0]) + str(entry[2]) + str(entry[3]) for entry in warnings.filters),
    }


def looks(value: Any, depth: int = DEPTH) -> object:
    """A value as JSON that is the same in each process where the value is equal."""
    if _is_a(value, int) and value > LARGEST:
        return ["int", "an address, most likely"]
    if _is_a(value, *CONSTANTS):
        return [type(value).__name__, repr(value)[:1000]]
    if _is_a(value, type):
        # Of wrapt's classes `__module__` is a property, which is shown with its address.
        home = value.__module__ if _is_a(value.__module__, str) else "a property"
        return ["class", home, value.__qualname__, [base.__qualname__ for base in value.__mro__]]
    if _is_a(value, types.FunctionType):
        return ["function", value.__qualname__, hashlib.sha256(value.__code__.co_code).hexdigest()]
    kind = type(value).__qualname__
    if type(value) is dict and depth:
        return [kind, sorted(([looks(key, 0), looks(each, depth - 1)] for key, each in _some(value.items())), key=str)]
    if type(value) in (set, frozenset) and depth:
        return [kind, len(value), sorted((looks(each, 0) for each in value), key=str)[:ITEMS]]
    if type(value) in (list, tuple) and depth:
        return [kind, len(value), [looks(each, depth - 1) for each in _some(value)]]
    return ["object", type(value).__module__, kind]


def _is_a(value: object, *kinds: type) -> bool:
    """isinstance, without asking the value for its __class__: a lazy object would load what it stands for."""
    return issubclass(type(value), kinds)


def _some(items: Iterable[Any]) -> list[Any]:
    """The first of them."""
    return list(items)[:ITEMS]


def _is_of_a_package(module: object) -> bool:
    file = vars(module).get("__file__") if _is_a(module, types.ModuleType) else None
    return isinstance(file, str) and file.startswith(STORE)


def _evaluated(expression: str) -> str:
    try:
        return repr(eval(expression))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def _digest(seen: object) -> str:
    return hashlib.sha256(json.dumps(seen, default=str).encode()).hexdigest()[:12]
