"""The process of the agent, by itself."""

from __future__ import annotations

import socket
import subprocess
import sys


def test_a_process_whose_daemon_ended_before_it_began_ends_quietly() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.close()
        command = [sys.executable, "-m", "sockd.chunk_agent", str(theirs.fileno())]
        ended = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, b"")
