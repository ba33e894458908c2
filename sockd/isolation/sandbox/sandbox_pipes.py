"""The connections of a sandbox with the daemon: both ends of the channel and of the output pipe."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from sockd.isolation.sandbox.output import Output


@dataclass(slots=True)
class SandboxPipes:
    """The daemon's ends and the sandbox's ends of its pipes and sockets, owned by the holder of this object; each half is
    closed once."""

    output: Output
    sock: socket.socket
    output_fd: int
    channel_fd: int

    @classmethod
    def open(cls) -> Self:
        """Raises: OSError; then nothing stays behind."""
        with ExitStack() as undo:
            output, output_fd = Output.open(0)
            undo.callback(output.close)
            undo.callback(os.close, output_fd)
            sock, peer = socket.socketpair()
            undo.pop_all()
        return cls(output, sock, output_fd, peer.detach())

    def close_ours(self) -> None:
        self.output.close()
        self.sock.close()

    def close_theirs(self) -> None:
        """Once the child has its copies."""
        os.close(self.output_fd)
        os.close(self.channel_fd)

    def close(self) -> None:
        """Close both halves, when the sandbox was not made."""
        self.close_ours()
        self.close_theirs()
