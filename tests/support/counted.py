"""A worker that counts what is alive in it: python -m tests.support.counted up ...

On SIGUSR1 it collects all cycles and writes what it then holds to the file that SOCKD_COUNTED_FILE names, as JSON: objects by
type, bytes that malloc(3) has given out, and, unless SOCKD_COUNTED_LINES is 0, blocks and bytes by the line that has asked for
them (tracemalloc, which makes it several times slower). A line on stderr says when.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

WRITTEN = "the count is written"


class Mallinfo2(ctypes.Structure):
    """mallinfo(3)"""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def malloc_in_use() -> dict[str, int]:
    """Return the use of the main arena: what is given out, what is free inside, and what is mapped by itself."""
    function = ctypes.CDLL(None).mallinfo2
    function.restype = Mallinfo2
    info = function()
    return {"in_use": info.uordblks, "free": info.fordblks, "mapped": info.hblkhd}


def count(file: Path) -> None:
    """Write what is alive now."""
    gc.unfreeze()  # what the worker keeps out of collections is to be seen, too
    sys._clear_type_cache()  # of up to 4096 names of attributes, each as often as C code has made it (re: "search")
    for _ in range(3):  # a finalizer may leave more
        gc.collect()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    lines: dict[str, tuple[int, int]] = {}
    if tracemalloc.is_tracing():
        snapshot = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, tracemalloc.__file__),))
        for each in snapshot.statistics("lineno"):
            lines[f"{each.traceback[0].filename}:{each.traceback[0].lineno}"] = each.count, each.size
    file.write_text(json.dumps({"types": types, "lines": lines, "malloc": malloc_in_use()}))
    os.write(2, f"{WRITTEN}\n".encode())


def main() -> None:
    """Run the command, and count when asked."""
    from sockd.client.cli.main import main as sockd_main

    file = Path(os.environ["SOCKD_COUNTED_FILE"])
    signal.signal(signal.SIGUSR1, lambda *_: count(file))
    if os.environ.get("SOCKD_COUNTED_LINES") != "0":
        tracemalloc.start()
    sockd_main()


if __name__ == "__main__":
    main()
