"""What caches of `functools` hold, as far as another call can find a difference.

Of `lru_cache`, an entry whose key has a function or a class of the code's own is left out: these are equal to themselves alone,
so an import, which has no reference to them, never asks for it. The order of use is left out, too, while it decides nothing: as
long as the cache is not full, no entry gives way to another one. Of `singledispatch`, all is left out that it works out of its
registry, as it drops that when the registry changes.
"""

from __future__ import annotations

import gc
import sys

from sockd_zygote.forks.module_kinds import is_a

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    IsOwn = Callable[[Any], bool]

DISPATCHING = "wrapper"
"""The name of the code of all functions that `singledispatch` makes."""
WORKED_OUT = ("cache_token", "dispatch_cache")
"""Variables of their closures that change when they are called."""
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
    return any(is_own(each) for each in tuple.__iter__(parts))


def dispatch_cells(function: Any) -> list[Any]:
    """Return what a function of `singledispatch` keeps of its calls. Args: function: its code is `dispatching_code`."""
    (dispatch,) = (cell.cell_contents for cell in named_cells(function, ("dispatch",)))
    cells = named_cells(dispatch, WORKED_OUT)
    return [*cells, *(cell.cell_contents for cell in cells)]


def named_cells(function: Any, names: tuple[str, ...]) -> list[Any]:
    pairs = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return [cell for name, cell in pairs if name in names]
