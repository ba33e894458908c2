"""Whom the kernel's OOM killer takes: the daemon and farm init last, what runs functions first (proc_pid_oom_score_adj(5)).

Owns nothing. A child has its parent's value; a process without CAP_SYS_RESOURCE cannot go below what one with it wrote last, so
the daemon writes the root Zygote's, and every Zygote and sandbox has it from there, without a system call of its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

OURS = -900
THEIRS = 500


def protect_ourselves() -> bool:
    """Make this process one of the last, unless the host has decided otherwise (`OOMScoreAdjust=`). False: not allowed."""
    own = Path("/proc/self/oom_score_adj")
    try:
        if int(own.read_text()) == 0:
            own.write_text(str(OURS))
    except OSError:
        return False
    return True


def expose(pid: int) -> None:
    """Make a process one of the first, and all that it will fork, for good."""
    with suppress(OSError):  # it is gone already
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(THEIRS))
