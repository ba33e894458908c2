"""Check a process that a Zygote with packages reports as its fork, and move it into its cgroups.

A child of the root Zygote joins its cgroups itself, by writing "0" to files that root opened. A Zygote that has imported
packages gets no such file: by writing another number it could move any process of the farm, farm init too, into a
cgroup that will be killed. Its children wait on a pipe until the daemon has moved them. Owns the pipe.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from sockd.base.errors import SandboxFailed
from sockd.linux.processes import pidfds


class NotItsChild(SandboxFailed):
    """The process is gone already, or another's: the Zygote lies."""


class Adoption:
    """The pipe of one child. `waiting` goes to the Zygote, `adopt` follows its answer, `close` in any case."""

    def __init__(self) -> None:
        self.waiting, self._go = os.pipe()

    async def adopt(self, pidfd: int, parent: int, procs: Sequence[int], *, quick: bool) -> None:
        """Move the child and let it go on.

        Args:
            parent: the Zygote's pidfd; procs: the cgroup.procs files that the child is to be in.
            quick: here and now; otherwise a move may wait for 8-16 ms, so a thread does it.
        Raises: NotItsChild, OSError; then the child ends by itself, in its Zygote's cgroup."""
        if quick:
            move(pidfd, parent, procs, self._go)
            return
        moving = asyncio.get_running_loop().run_in_executor(None, move, pidfd, parent, tuple(procs), self._go)
        try:
            await asyncio.shield(moving)
        except asyncio.CancelledError:
            await asyncio.wait([moving])  # it uses descriptors that the caller is about to close
            raise

    def close(self) -> None:
        """Let go of the pipe; a child that still waits then ends."""
        for fd in (self.waiting, self._go):
            os.close(fd)


def move(pidfd: int, parent: int, procs: Sequence[int], go: int) -> None:
    """What `Adoption.adopt` does, blocking."""
    pid = checked_child(pidfd, parent)
    try:
        for fd in procs:
            os.write(fd, b"%d" % pid)
    except ProcessLookupError:
        raise NotItsChild("the process died while it was moved into its cgroups") from None
    os.write(go, b"1")


def checked_child(pidfd: int, parent: int) -> int:
    """The pid of a process that lives and whose parent is the other one. Raises: NotItsChild."""
    pid, its_parent = pidfds.pid_and_parent(pidfd)
    if pid <= 0 or its_parent != pidfds.pid_and_parent(parent)[0]:
        raise NotItsChild("the Zygote answered with a process that is not its child, or is gone")
    return pid
