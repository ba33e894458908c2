"""Processes and threads that the sandboxes of one function may have together: divided into grants, one for each sandbox.

    POLICY: a sandbox is granted what its function's settings say, at most a quarter of what is left of the function's share, and
    at least `LEAST`. So the first sandboxes of a function have all that they ask for, a crowd of them gets less each, and none
    is refused.

Owns numbers; a grant is enforced as the pids limit of a cgroup. Also reads how many tasks the host may have.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LEAST = 64
"""What each sandbox is granted at least, if its settings ask for as much."""
_PART = 4
_LIMITS = (Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/kernel/threads-max"))


class TaskShare:
    """The tasks of one function. `take` makes a grant."""

    def __init__(self, most: int) -> None:
        """Args: most: tasks of all sandboxes of the function."""
        self._most = most
        self.granted = 0

    def take(self, wanted: int) -> TaskGrant:
        """Grant tasks to one sandbox. Args: wanted: what its settings say."""
        left = max(self._most - self.granted, 0)
        return TaskGrant(self, min(wanted, max(LEAST, left // _PART)))


class TaskGrant:
    """Tasks that one sandbox may have. `close` gives them back; safe to call twice."""

    def __init__(self, share: TaskShare, tasks: int) -> None:
        self._share = share
        self.tasks = tasks
        share.granted += tasks

    def close(self) -> None:
        """Give them back: the sandbox's last process has ended."""
        self._share.granted -= self.tasks
        self.tasks = 0


def host_tasks(more: Iterable[Path] = ()) -> int:
    """Return how many processes and threads this host may have: the least of its limits.

    Args: more: files with further limits, such as pids.max of the cgroup above; one without a number is none."""
    found = []
    for file in (*_LIMITS, *more):
        with suppress(OSError, ValueError):
            found.append(int(file.read_text()))
    return min(found, default=1 << 15)
