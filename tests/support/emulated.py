"""Whether this host is a user-mode-linux guest (scripts/vm), which differs from all hardware in a few ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

IS_UML = "User Mode Linux" in Path("/proc/cpuinfo").read_text()
SLOWER = 6 if IS_UML else 1
"""How many times longer the deadlines of tests are: a fork takes 20 times as long in such a guest, whose clock is the host's."""

counts_sockets = pytest.mark.skipif(
    IS_UML and not os.uname().release.startswith("6.1."),
    reason="user-mode-linux after 6.1 refuses memory of eBPF maps, in which sockets and their uses are counted (vm/guest/uml.c)",
)

keeps_requests_of_killed_servers = pytest.mark.skipif(
    IS_UML and os.uname().release.startswith("6.12."),
    reason="user-mode-linux 6.12 fails requests of FUSE whose server is killed while it copies them; other kernels do not",
)
survives_fork_bombs = pytest.mark.skipif(
    IS_UML and os.uname().release.startswith("6.12."),
    reason="user-mode-linux 6.12 panics when it frees the memory of a process whose fork failed (exit_mmap)",
)


def not_in_uml(reason: str) -> pytest.MarkDecorator:
    """Mark a test that cannot pass in user-mode-linux. Args: reason: what it has differently."""
    return pytest.mark.skipif(IS_UML, reason=f"user-mode-linux {reason}")
