"""What must differ between forks of one Zygote, and what must be still before a fork.

Same in all forks unless mended here: numpy's and torch's global generators. `random`, `uuid`, `secrets`, `ssl` and
`tempfile` mend themselves (research: fork safety, measured). The hash secret and the memory layout stay shared: that is
the price of a Zygote, named in SECURITY.
"""

from __future__ import annotations

import gc
import sys


def settle() -> None:
    """Before forking: collect once and move every object out of the collector's sight.

    A child's first full collection then dirties 2-4 MB of shared pages instead of 50 (measured with pandas and django)."""
    gc.collect()
    gc.freeze()


def after_fork() -> None:
    """In the child, before user code: own randomness, and the collector on again."""
    for name, reseed in RESEED.items():
        module = sys.modules.get(name)
        if module is not None:
            reseed(module)  # type: ignore[no-untyped-call]
    gc.enable()


RESEED = {
    "numpy.random": lambda module: module.seed(),
    "torch": lambda module: module.seed(),
}


def thread_count() -> int:
    """Threads that run Python. Those of C libraries alone are not counted: an allocator's does no harm (pandas, pyarrow
    keep one or two), and whether the others do, only a canary can tell."""
    return len(sys._current_frames())
