"""A clock that is wrong, for a process of a test: `skewed_clock.c`, compiled and preloaded.

Time namespaces do not cover CLOCK_REALTIME, so that the library stands between a process and libc. What the process starts has
the wrong clock only where the library's path is seen: a worker's sandboxes have other roots, and the right time.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def environment(directory: Path, skew_s: int) -> dict[str, str]:
    """Return the variables of a process whose clock is so many seconds ahead, or behind.

    Args: directory: gets the library, which has to be there as long as the process."""
    library = directory / "skewed_clock.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(library)], check=True)
    return {"LD_PRELOAD": str(library), "SKEWED_CLOCK_S": str(skew_s)}
