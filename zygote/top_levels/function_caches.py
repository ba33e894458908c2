"""What caches of `functools` hold, as far as another call can find a difference.

Of `lru_cache`, an entry whose key has a function or a class of the code's own is left out: these are equal to themselves alone,
so an import, which has no reference to them, never asks for it. The same holds of a key with an object of a package whose hash is
the address of one of these (FastAPI wraps endpoints so): objects that are equal have one hash. The order of use is left out, too,
while it decides nothing: as long as the cache is not full, no entry gives way to another one. Of `singledispatch`, all that it
works out of its registry is left out, as it drops that when the registry changes.
"""

from __future__ import annotations

import gc
import sys

from sockd_zygote.forks.module_kinds import FunctionType, instance_dict, is_a

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    IsOwn = Callable[[Any], bool]

DISPATCHING = "wrapper"
"""The name of the code of all functions that `singledispatch` makes."""
WORKED_OUT = ("cache_token", "dispatch_cache")
"""Variables of their closures that change when they are called."""
HASHED_BY_ADDRESS = (lambda self: id(self.it)).__code__
"""The code of a `__hash__` that returns the address of an attribute."""
MEMBER = type(vars(FunctionType)["__globals__"])
"""The type of slots."""
BESIDES = 1
"""The class of the cache, which it refers to first."""
OF_ENTRY = 3
"""A bounded cache refers to key, result and class of each entry, those used last behind the others; then to its table."""


def dispatching_code() -> Any:
    """Return the code of all functions that `singledispatch` makes; None, if `functools` is not loaded."""
    code = getattr(getattr(sys.modules.get("functools"), "singledispatch", None), "__code__", None)
    return next((each for each in getattr(code, "co_consts", ()) if getattr(each, "co_name", "") == DISPATCHING), None)


def contents(cache: Any, is_own: IsOwn) -> list[Any]:
    """Return keys and results, in the order in which they came, then all else that a cache refers to.

    Args: cache: a `functools._lru_cache_wrapper`; is_own: whether a function or a class is the code's own."""
    refers = gc.get_referents(cache)
    place = place_of_table(refers)
    if not place or is_full(cache):
        return refers
    table = refers[place]
    results = dict(table)
    for number in range(BESIDES, place, OF_ENTRY):
        results[refers[number]] = refers[number + 1]
    kept = [(key, result) for key, result in results.items() if not has_own(key, is_own)]
    return [*(each for pair in kept for each in pair), *refers[place + 1 :]]


def place_of_table(refers: list[Any]) -> int:
    """Return the number of the table of entries among what a cache refers to; 0: it is another interpreter's, and not known."""
    for number, each in enumerate(refers):
        if type(each) is dict and number in (BESIDES, BESIDES + OF_ENTRY * len(each)):
            return number
    return 0


def is_full(cache: Any) -> bool:
    """Whether the next entry takes the place of another one."""
    *_, most, count = type(cache).cache_info(cache)
    return most is not None and count >= most


def has_own(key: Any, is_own: IsOwn) -> bool:
    """Whether a key has a part that no code finds equal to anything else, and that is the code's own."""
    parts = key if is_a(key, tuple) else (key,)
    return any(is_own(each) or is_own(hashed_by_address(each)) for each in tuple.__iter__(parts))


def hashed_by_address(value: Any) -> Any:
    """Return the object whose address is the hash of a value, by the code of its class; None: there is none. Runs no code."""
    for kind in type.__dict__["__mro__"].__get__(type(value)):
        function = vars(type)["__dict__"].__get__(kind).get("__hash__")
        if function is not None:
            break
    code = function.__code__ if type(function) is FunctionType else None
    if code is None or code.co_code != HASHED_BY_ADDRESS.co_code or code.co_names[:1] != ("id",):
        return None
    if "id" in function.__globals__:
        return None
    return attribute(value, code.co_names[1])


def attribute(value: Any, name: str) -> Any:
    """Return what an object keeps in a slot or in its dictionary; None: it has no such attribute."""
    for kind in type.__dict__["__mro__"].__get__(type(value)):
        found = vars(type)["__dict__"].__get__(kind).get(name)
        if type(found) is MEMBER:
            try:
                return found.__get__(value)
            except AttributeError:
                return None
        if found is not None:
            return None
    return (instance_dict(value) or {}).get(name)


def dispatch_cells(function: Any) -> list[Any]:
    """Return what a function of `singledispatch` keeps of its calls. Args: function: its code is `dispatching_code`."""
    (dispatch,) = (cell.cell_contents for cell in named_cells(function, ("dispatch",)))
    cells = named_cells(dispatch, WORKED_OUT)
    return [*cells, *(cell.cell_contents for cell in cells)]


def named_cells(function: Any, names: tuple[str, ...]) -> list[Any]:
    pairs = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return [cell for name, cell in pairs if name in names]
