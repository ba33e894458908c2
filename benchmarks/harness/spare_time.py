"""Processes that take only the processor time that nobody else wants, so that load does not measure its own generator.

SCHED_IDLE alone does not do that: it holds among the processes of one group, and a session is a group where the kernel
groups by sessions (sched_autogroup_enabled), as a worker's sandboxes are. So they are a group of their own, which is idle
as a whole where cgroups can say so (cpu.idle, Linux 5.15), and else a session of the least weight.

Owns the cgroup, for as long as the block lasts; all processes in it must have ended then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOUNTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""The mounts of the cpu controller: of version 1, of version 2."""
LEAST_NICE = "19"


class SpareTime:
    """Who is given it. `take_in` processes that lead a session of their own, at their start."""

    def __init__(self, cgroup: Path | None) -> None:
        self._cgroup = cgroup

    @property
    def words(self) -> str:
        """How, for people."""
        return "an idle cgroup" if self._cgroup is not None else "sessions of the least weight"

    def take_in(self, pid: int) -> None:
        """Let a process, and what it starts, take nothing else from now on."""
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        if self._cgroup is not None:
            (self._cgroup / "cgroup.procs").write_text(str(pid))
        else:
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/{pid}/autogroup").write_text(LEAST_NICE)

    def let_out(self, pid: int) -> None:
        """Let a process take part again: one that is killed needs time to end, of which a busy machine has none to spare."""
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        if self._cgroup is not None:
            (self._cgroup.parent / "cgroup.procs").write_text(str(pid))
        else:
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/{pid}/autogroup").write_text("0")


@contextlib.contextmanager
def spare_time() -> Iterator[SpareTime]:
    """For the processes of one benchmark."""
    cgroup = _idle_cgroup()
    try:
        yield SpareTime(cgroup)
    finally:
        if cgroup is not None:
            cgroup.rmdir()


def _idle_cgroup() -> Path | None:
    """A new one at the top, where the groups of workers and sessions are; None where there can be none."""
    for mount in MOUNTS:
        cgroup = mount / f"sockd-bench-{os.getpid()}"
        try:
            cgroup.mkdir()
        except OSError:
            continue
        try:
            write(cgroup / "cpu.idle", "1")
        except OSError:
            cgroup.rmdir()
            continue
        return cgroup
    return None


def write(file: Path, text: str) -> None:
    """Write to a file that is there: on a tmpfs, which a hybrid host has at the second place, others could be made."""
    fd = os.open(file, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
