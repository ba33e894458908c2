"""A worker with failpoints in its own calls and in its Zygotes: python -m tests.support.failing PORT,BROKEN up ...

What fails, where and how often is the test's to say while it runs (`tests/support/plans.py` listens on the port). The
daemon asks before each cold start ("start") and each new Zygote ("provision"), its Zygotes before each fork ("sandbox",
"zygote"): they run a build of zygote/native in which every system call of a fork is a failpoint (`failpoints.h`). BROKEN names a
protection that it lacks besides (`broken.py`); mostly it is empty.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sockd.functions.serving.function import Function
from sockd.isolation.roots import premade
from sockd.linux import syscalls
from sockd.linux.cgroups.cgroup_limits import CgroupLimits
from sockd.linux.processes import pidfds
from sockd.starts.zygotes.learning.zygote_maker import ZygoteMaker
from tests.support.breaks.breaking import copied_zygote
from tests.support.broken import BREAKS
from tests.support.native_build import build_native

HERE = Path(__file__).resolve().parent

CALLS: tuple[tuple[ModuleType, str], ...] = (
    (syscalls, "open_tree"),
    (syscalls, "move_mount"),
    (syscalls, "mount_setattr"),
    (syscalls, "new_filesystem"),
    (pidfds, "pid_namespace"),
    (socket, "socketpair"),
    (os, "pipe"),
    (os, "open"),
    (os, "mkdir"),
    (os, "chown"),
    (os, "pwrite"),
    (os, "pread"),
    (os, "set_blocking"),
    (fcntl, "fcntl"),
)
"""The daemon's own calls that can be made to fail."""
STEPS = tuple(f"{module.__name__.rpartition('.')[2]}.{name}" for module, name in CALLS)


@dataclass
class Failpoint:
    """What is to fail next in this process, if anything is."""

    port: int
    action: str = ""
    errno: int = 0
    nth: int = 0
    step: str = ""
    kill: Callable[[], object] = int
    """Kills the Zygote that the work is about."""

    def tell(self, words: str) -> str:
        """One line to the test, and its answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(words.encode() + b"\n")
            return connection.makefile().readline().strip()

    def ask(self, kind: str, kill: Callable[[], object]) -> None:
        """A piece of work begins: is one of its steps to fail?"""
        self.kill = kill
        if plan := self.tell(kind).split(" ", 3):
            self.action, self.step = plan[0], plan[-1]
            self.errno, self.nth = map(int, plan[1:3] or (0, 0))

    def reach(self, step: str) -> None:
        """Fail as the plan says, in the loop's thread only."""
        if step != self.step or threading.current_thread() is not threading.main_thread():
            return
        self.nth -= 1
        if self.nth > 0:
            return
        self.step = ""
        self.tell(f"reached {step}")
        if self.action == "error":
            raise OSError(self.errno, os.strerror(self.errno))
        self.kill()


def failing(failpoint: Failpoint, module: ModuleType, name: str) -> None:
    """Have one call look at the plan first."""
    original, step = getattr(module, name), f"{module.__name__.rpartition('.')[2]}.{name}"

    def call(*args: Any, **kwargs: Any) -> Any:
        failpoint.reach(step)
        return original(*args, **kwargs)

    setattr(module, name, call)


def asking(
    failpoint: Failpoint, kind: str, work: Callable[..., Any], zygote_of: Callable[..., Any]
) -> Callable[..., Any]:
    """A coroutine function that asks for its plan first and forgets it in the end."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        failpoint.ask(kind, lambda: zygote_of(*args).cgroup.kill_nowait())
        try:
            return await work(*args, **kwargs)
        finally:
            failpoint.step = ""

    return call


def patch_zygotes(port: int) -> None:
    """Sandboxes and Zygotes run a copy of zygote/ that asks."""
    build_native(
        copied_zygote(),
        options=[f"-DFAILPOINTS_PORT={port}"],
        more=[HERE / "failpoints.c"],
        include=HERE / "failpoints.h",
        into=("fork.c", "confine.c", "privileges.c"),
    )


def start_from_nothing() -> None:
    """Have each start make all that it needs, and no cgroup have its limits already."""
    premade.MOST = 0
    set_limits = CgroupLimits.set

    def set_anew(self: CgroupLimits, *limits: Any) -> None:
        self._memory_bytes = self._tasks = 0
        self._cpus = 0.0
        set_limits(self, *limits)

    CgroupLimits.set = set_anew  # type: ignore[method-assign,assignment]


def jump(failpoint: Failpoint) -> None:
    """Have the daemon's wall clock, as Python reads it, be where the test wants it."""
    real, real_ns = time.time, time.time_ns

    def offset() -> float:
        return float(failpoint.tell("clock") or 0)

    time.time = lambda: real() + offset()
    time.time_ns = lambda: real_ns() + int(offset() * 1e9)


def main() -> None:
    """`sockd` itself, with failpoints."""
    from sockd.client.cli.main import main as sockd_main

    port, _, protection = sys.argv.pop(1).partition(",")
    if protection:
        BREAKS[protection]()
    failpoint = Failpoint(int(port))
    patch_zygotes(failpoint.port)
    start_from_nothing()
    jump(failpoint)
    for module, name in CALLS:
        failing(failpoint, module, name)
    start = asking(failpoint, "start", Function.start, lambda self, *rest: self.caches.tree.root.zygote)
    provision = asking(failpoint, "provision", ZygoteMaker.make, lambda self, parent, plan: parent.zygote)
    Function.start, ZygoteMaker.make = start, provision  # type: ignore[method-assign]
    sockd_main()


if __name__ == "__main__":
    main()
