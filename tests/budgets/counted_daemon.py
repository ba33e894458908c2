"""`sockd`, counting in a shared file the Python functions that its main thread calls, or those of them that a function of another
room calls (a border, `tests.support.rooms`), or what it asks malloc(3) for.

Started as a program: `python -m tests.budgets.counted_daemon FILE calls|borders|allocations up ...`."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.support.rooms import ROOT, Room, name_of, rooms_of

MOST_BORDERS = 4096
"""How many pairs of functions can be distinguished; more are counted as the last."""
FIRST_BORDER = 3
BYTES = (FIRST_BORDER + MOST_BORDERS) * 8
CALLS = "calls"
BORDERS = "borders"


def count_calls(counts: memoryview) -> None:
    """From now on, in this thread: the third number."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counts[2] += 1

    sys.setprofile(note)


def count_borders(counts: memoryview, names: Path) -> None:
    """From now on, in this thread: one number for each pair of a caller and a function in another room, whose names are the
    file's lines. A caller that is no function of ours, such as the event loop, is in no room."""
    file = names.open("w", buffering=1)
    numbers: dict[tuple[CodeType, CodeType], int] = {}

    @functools.cache
    def room(path: str) -> Room | None:
        return next(iter(rooms_of(name_of(os.path.relpath(path, ROOT)))), None)

    def number(caller: CodeType, called: CodeType) -> int:
        """Return the number of a pair's count; 0 if both are in one room."""
        found = room(caller.co_filename), room(called.co_filename)
        if None in found or found[0] is found[1]:
            return 0
        borders = len([number for number in numbers.values() if number])
        if borders < MOST_BORDERS:
            file.write(f"{caller.co_filename}:{caller.co_qualname} -> {called.co_filename}:{called.co_qualname}\n")
        return FIRST_BORDER + min(borders, MOST_BORDERS - 1)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or (caller := frame.f_back) is None:
            return
        pair = caller.f_code, frame.f_code
        if pair not in numbers:
            numbers[pair] = number(*pair)
        counts[numbers[pair]] += numbers[pair] > 0

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
    from sockd.client.cli.main import main as sockd

    if what == BORDERS:
        count_borders(counts, Path(f"{path}.{BORDERS}"))
    else:
        (count_calls if what == CALLS else count_allocations)(counts)
    sockd()


if __name__ == "__main__":
    main()
