"""`sockd`, counting in a shared file either the Python functions that its main thread calls, or what it asks malloc(3) for.

Started as a program: `python -m tests.budgets.counted_daemon FILE calls|allocations up ...`."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from types import FrameType
from typing import Any

BYTES = 3 * 8
CALLS = "calls"


def count_calls(counts: memoryview) -> None:
    """From now on, in this thread: the third number."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counts[2] += 1

    sys.setprofile(note)


def count_allocations(counts: memoryview) -> None:
    """From now on, in this process: the first two. The library was preloaded; what we start is not to have it."""
    library = ctypes.CDLL(os.environ.pop("LD_PRELOAD"))
    os.environ.pop("PYTHONMALLOC", None)
    library.count_allocations_in(ctypes.byref(ctypes.c_uint64.from_buffer(counts)))


def main() -> None:
    path, what, *arguments = sys.argv[1:]
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), BYTES)
    # SAFETY: one reference that nobody gives back: malloc(3) is called until the process has ended.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
    counts = memoryview(shared).cast("Q")
    sys.argv[1:] = arguments
    from sockd.cli.main import main as sockd

    (count_calls if what == CALLS else count_allocations)(counts)
    sockd()


if __name__ == "__main__":
    main()
