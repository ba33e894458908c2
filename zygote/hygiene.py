"""What must differ between forks of one Zygote, and what must be still before a fork.

Same in all forks unless mended here: numpy's and torch's global generators. `random`, `uuid`, `secrets`, `ssl` and
`tempfile` mend themselves (research: fork safety, measured). The hash secret and the memory layout stay shared: that is
the price of a Zygote, named in SECURITY.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def numpy_seeder(module: Any) -> Callable[[], object]:
    """What gives numpy's global generator other numbers. Its own `seed` takes a child 100 page faults, so the 624 words that
    are all of a Mersenne Twister's state but its position are overwritten where they are, as far as these are there."""
    module.seed()  # no half of a pair of gauss() is left over
    try:
        key = module.get_state(legacy=False)["state"]["key"].tobytes()
        address = module.get_bit_generator().ctypes.state_address
        from ctypes import c_char

        words = memoryview((c_char * len(key)).from_address(address)).cast("B")
    except Exception:  # another numpy, or no numpy at all
        return module.seed  # type: ignore[no-any-return]
    return partial(fill, words) if words == key else module.seed


def fill(words: memoryview) -> None:
    words[:] = os.urandom(len(words))


SEEDERS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "numpy.random": numpy_seeder,
    "torch": lambda module: module.seed,
}
_to_reseed: list[Callable[[], object]] = []


def settle() -> None:
    """Before forking: collect once and move every object out of the collector's sight.

    A child's first full collection then dirties 2-4 MB of shared pages instead of 50 (measured with pandas and django)."""
    _to_reseed[:] = [seeder(sys.modules[name]) for name, seeder in SEEDERS.items() if name in sys.modules]
    gc.collect()
    gc.freeze()


def after_fork() -> None:
    """In the child, before user code: own randomness. (native/fork.c has switched the collector on again.)"""
    for reseed in _to_reseed:
        reseed()


def thread_count() -> int:
    """Threads that run Python. Those of C libraries alone are not counted: an allocator's does no harm (pandas, pyarrow
    keep one or two), and whether the others do, only a canary can tell."""
    return len(sys._current_frames())
