"""Threads as the kernel sees them (proc_pid_task(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Thread:
    """One of them, at one moment."""

    tid: int
    name: str
    processors: str
    """The processors that the thread may run on."""
    blocked: int
    """Mask of signals that are not for it."""
    slept: int
    """How often it has given its processor away of its own accord."""


def threads_of(pid: int, prefix: str = "") -> list[Thread]:
    """Return the threads of a process whose names begin so; one that ends meanwhile is left out."""
    found = []
    for directory in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = dict(re.findall(r"^(\w+):\s*(.*)$", (directory / "status").read_text(), re.MULTILINE))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if status["Name"].startswith(prefix):
            found.append(
                Thread(
                    int(directory.name),
                    status["Name"],
                    status["Cpus_allowed_list"],
                    int(status["SigBlk"], 16),
                    int(status["voluntary_ctxt_switches"]),
                )
            )
    return found


def slept_by(pid: int, prefix: str) -> int:
    """How often they have slept together."""
    return sum(thread.slept for thread in threads_of(pid, prefix))


def may_be_real_time() -> bool:
    """Whether this process may make threads that go before others."""
    thread_policy = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, thread_policy, os.sched_param(0))
    return True
