"""What must differ between forks of one Zygote, and what must be still before a fork.

Same in all forks unless mended here: numpy's and torch's global generators. `random`, `uuid`, `secrets`, `ssl` and
`tempfile` mend themselves (research: fork safety, measured). The hash secret and the memory layout stay shared: that is
the price of a Zygote, named in SECURITY.
"""

from __future__ import annotations

import gc
import sys
from functools import partial

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable


RESEED = {
    "numpy.random": lambda module: module.seed(),
    "torch": lambda module: module.seed(),
}
_to_reseed: list[Callable[[], object]] = []


def settle() -> None:
    """Before forking: collect once and move every object out of the collector's sight.

    A child's first full collection then dirties 2-4 MB of shared pages instead of 50 (measured with pandas and django)."""
    _to_reseed[:] = [partial(RESEED[name], sys.modules[name]) for name in RESEED if name in sys.modules]
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
