"""Bytecode of an image that is not used for a rounding error: times of sources are set as their bytecode expects them.

Python uses a .pyc only if its header has the time of its source, in seconds (PEP 552). Writers of layers disagree on a time
between two seconds: Go's archive/tar rounds it, Python has cut it. Half of an image's bytecode is then of no use, and each start
compiles (in an image of umoci's, 251 of numpy's 407 modules). Nothing but such a time is changed.
"""

from __future__ import annotations

import stat
import struct

from sockd.base.file_tree import NO_DATA, FileTree, Inode, LayerData

HEADER = struct.Struct("<4sIII")
"""Magic number, flags, time of the source, its size."""
CACHE = "__pycache__"
SUFFIX = ".pyc"


def mend_times(tree: FileTree, data: LayerData) -> int:
    """Set the times of sources that differ by one second from what their bytecode says; how many were. Blocks.

    Raises: OSError, EOFError, as `data`."""
    mended = 0
    for path in sorted(path for path in tree if path.endswith(SUFFIX)):
        source = tree.get(source_of(path))
        if source is not None and stat.S_ISREG(source.mode):
            mended += _mend(source, tree[path], data)
    return mended


def source_of(path: str) -> str:
    """The source that a .pyc in a __pycache__ was compiled from (PEP 3147); elsewhere empty."""
    directory, _, name = path.rpartition("/")
    parent, _, last = directory.rpartition("/")
    if last != CACHE:
        return ""
    return f"{parent}/{name.partition('.')[0]}.py".lstrip("/")


def _mend(source: Inode, cached: Inode, data: LayerData) -> bool:
    if not stat.S_ISREG(cached.mode) or cached.layer == NO_DATA or cached.size < HEADER.size:
        return False
    _, flags, time_s, size = HEADER.unpack(data.read(cached.layer, cached.offset, HEADER.size))
    is_of_this = flags == 0 and size == source.size & 0xFFFFFFFF  # other flags: its source's time is not looked at
    if not is_of_this or abs(time_s - source.mtime_s) != 1:
        return False
    source.mtime_s, source.mtime_ns = time_s, 0
    return True
