"""A child process that works on text of a stranger's, bounded in memory and time.

Owns the process until it has ended. Its end is waited for as an event: `subprocess` with a timeout looks at growing intervals, of
up to 50 ms (`Popen._wait`).
"""

from __future__ import annotations

import os
import resource
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from sockd.kernel import oom_score


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

    Args: memory_bytes: of address space; stdin, stdout: descriptors of files, no pipes. Returns: its exit code, negative for a
    signal; None if it was killed at the deadline. Raises: OSError if it cannot be started."""
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        umask=umask,
        start_new_session=True,  # an interrupt from the terminal is the daemon's, not the child's
    )
    with process:
        try:
            # From here, not between fork and exec: the daemon runs nothing there. The interpreter is still starting.
            oom_score.expose(process.pid)
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            if not _has_ended(process.pid, deadline_s):
                process.kill()
                return None
            return process.wait()
        except BaseException:
            process.kill()
            raise


def _has_ended(child: int, deadline_s: float) -> bool:
    """Wait for a child of ours that nobody has reaped, until the deadline (pidfd_open(2))."""
    pidfd = os.pidfd_open(child)
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return bool(ended.poll(deadline_s * 1000))
    finally:
        os.close(pidfd)
