"""A worker that counts what is alive in it: python -m tests.support.counted up ...

On SIGUSR2 it collects all cycles and writes what it then holds to the file that SOCKD_COUNTED_FILE names: blocks and bytes by the
line that has asked for them (tracemalloc), and objects by type, as JSON; a line on stderr says so. It runs several times slower.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

COUNTED = "COUNTED_FILE_IS_WRITTEN"
FRAMES = int(os.environ.get("SOCKD_COUNTED_FRAMES", "1"))


def count(file: Path) -> None:
    """Write what is alive now."""
    gc.unfreeze()  # what the worker keeps out of collections is to be seen, too
    for _ in range(3):  # a finalizer may leave more
        gc.collect()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    if not FRAMES:
        import ctypes
        class M(ctypes.Structure):
            _fields_=[(n,ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
        f=ctypes.CDLL(None).mallinfo2; f.restype=M
        m=f()
        file.write_text(json.dumps({"types": types, "lines": {}, "m": {n: getattr(m,n) for n,_ in M._fields_}}))
        os.write(2, f"{COUNTED}\n".encode())
        return
    snapshot = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(False, tracemalloc.__file__),))
    lines = {
        " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(each.traceback)): (each.count, each.size)
        for each in snapshot.statistics("traceback" if FRAMES > 1 else "lineno")
    }
    file.write_text(json.dumps({"types": types, "lines": lines}))
    os.write(2, f"{COUNTED}\n".encode())


def main() -> None:
    """Run the command with counting."""
    from sockd.cli.main import main as run

    file = Path(os.environ["SOCKD_COUNTED_FILE"])
    signal.signal(signal.SIGUSR2, lambda *_: count(file))
    FRAMES and tracemalloc.start(FRAMES)
    sys.argv = ["sockd", *sys.argv[1:]]
    run()


if __name__ == "__main__":
    main()
