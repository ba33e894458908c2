"""A child process that works on text of a stranger's, bounded in memory and time.

Owns the process until it has ended. Its end is waited for as an event: `subprocess` with a timeout looks at growing intervals, of
up to 50 ms (`Popen._wait`). A shell limits the memory and then becomes the command: no Python runs between fork and exec, and
prlimit(2) from outside may come late.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Sequence

from sockd.linux.processes import oom_score

_LIMITED = ("/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"')
"""Before a command: its address space in KiB."""


def run_bounded(
    command: Sequence[str],
    *,
    memory_bytes: int,
    deadline_s: float,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    umask: int = -1,
) -> int | None:
    """Run a command to its end. Blocks.

    Args: command: begins with a path; memory_bytes: of address space; stdin, stdout: descriptors of files, no pipes.
    Returns: its exit code, negative for a signal; None: killed at the deadline. Raises: OSError: it cannot be started."""
    if not os.access(command[0], os.X_OK):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    process = subprocess.Popen(
        [*_LIMITED, str(memory_bytes >> 10), *command],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        umask=umask,
        start_new_session=True,  # an interrupt from the terminal is the daemon's, not the child's
    )
    with process:
        try:
            oom_score.expose(process.pid)
            if not _has_ended(process.pid, deadline_s):
                process.kill()
                return None
            return process.wait()
        except BaseException:
            process.kill()
            raise


def _has_ended(child: int, deadline_s: float) -> bool:
    """Wait for a child of ours that is not reaped, until the deadline (pidfd_open(2))."""
    pidfd = os.pidfd_open(child)
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return bool(ended.poll(deadline_s * 1000))
    finally:
        os.close(pidfd)
