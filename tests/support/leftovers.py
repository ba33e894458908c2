"""What test runs have left that were killed: `sweep` ends their workers, and removes their cgroups and shared memory.

Owns nothing. A run's group id (`ledger.claim_group`) tells what is its own: it is made of the pid of a process that has this
group as long as the run lasts. Directories in /tmp are pytest's, which removes old ones.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.support.ledger import GROUP_BASE, is_cgroup

WAIT_S = 10.0
PID_BITS = 22
"""The bits of the largest pid that Linux has."""


def sweep() -> None:
    """As root, before the first test."""
    for pid in _pids():
        if _is_left(Path(f"/proc/{pid}")):
            _end(pid)
    hierarchies = Hierarchies.detect()
    found = [entry for base in hierarchies.bases for entry in _entries(base) if is_cgroup(entry.name)]
    left = {entry.name for entry in found if _is_left(Path(entry))}
    for name in left:
        with contextlib.suppress(OSError, TimeoutError):  # another run may sweep, too
            CgroupTree(hierarchies, name).destroy_all(WAIT_S)
    for entry in _entries("/dev/shm"):
        if _is_left(Path(entry)):
            with contextlib.suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


def _is_left(path: Path) -> bool:
    """Whether it was made by a run, or runs for one, whose process is gone."""
    group = _group(path)
    pid = group - GROUP_BASE
    return 0 < pid < 1 << PID_BITS and _group(Path(f"/proc/{pid}")) != group


def _group(path: Path) -> int:
    try:
        return path.lstat().st_gid
    except OSError:
        return -1


def _end(pid: int) -> None:
    """SIGKILL, unless the pid is another process's by now."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_left(Path(f"/proc/{pid}")):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [], WAIT_S)
        finally:
            os.close(pidfd)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []
