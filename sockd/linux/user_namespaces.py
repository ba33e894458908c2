"""User namespaces without a process, for id maps of mounts (mount_setattr(2), MOUNT_ATTR_IDMAP).

A namespace comes into being with a process only. Here that is a child which only ends (`ended_child`). Its maps are written, and
its namespace is opened, before it is reaped. Owns nothing; the caller owns the descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sockd.linux import syscalls
from sockd.linux.processes import ended_child

Extent = tuple[int, int, int]
"""First id inside, first id outside, how many: a line of uid_map (user_namespaces(7))."""


def new(uids: Iterable[Extent], gids: Iterable[Extent]) -> int:
    """A namespace with these extents as its uid map and its gid map; an fd, close-on-exec. Raises: OSError naming the call."""
    pid = ended_child.make(syscalls.CLONE_NEWUSER)
    try:
        for name, extents in (("uid_map", uids), ("gid_map", gids)):
            lines = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents).encode()
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, lines)
            finally:
                os.close(fd)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ended_child.reap(pid)
