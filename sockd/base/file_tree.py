"""The files of a container image after all of its layers were applied: metadata here, data in the layers.

Plain data, between those who read layers (`sockd.images.registry`) and those who write file systems (`sockd.linux.erofs`).
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from typing import Protocol

NO_DATA = -1
MOST_LINKS = 40
"""Symbolic links that a path may lead through (path_resolution(7))."""


@dataclass(slots=True, eq=False)
class Inode:
    """One file. Paths that are hard links of each other share one Inode, so it is compared by identity."""

    mode: int
    """Permissions and the type (S_IFMT), as of stat(2)."""
    uid: int = 0
    gid: int = 0
    mtime_s: int = 0
    mtime_ns: int = 0
    """Part of a second, 0 to 999 999 999."""
    size: int = 0
    """Bytes of a regular file; 0 for all else."""
    target: str = ""
    """The target of a symbolic link."""
    rdev: int = 0
    """The number of a device node, as made by os.makedev."""
    xattrs: dict[str, bytes] = field(default_factory=dict)
    layer: int = NO_DATA
    """Which layer has the data of a regular file; NO_DATA: it is empty."""
    offset: int = 0
    """Where the data begins in the uncompressed layer."""


FileTree = dict[str, Inode]
"""By path: relative, without a leading or trailing slash; "" is the root. Bytes that are not UTF-8 are surrogates
(os.fsdecode). Each parent directory is there."""


def resolve(tree: FileTree, path: str) -> str | None:
    """Where a path leads, relative to the root; None: nowhere."""
    pending = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    here: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            del here[-1:]
            continue
        inode = tree.get("/".join([*here, part]))
        if inode is None:
            return None
        if not stat.S_ISLNK(inode.mode):
            here.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        if inode.target.startswith("/"):
            here = []
        pending += [each for each in reversed(inode.target.split("/")) if each not in ("", ".")]
    return "/".join(here)


class LayerData(Protocol):
    """The uncompressed layers."""

    def read(self, layer: int, offset: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises: OSError, EOFError."""
