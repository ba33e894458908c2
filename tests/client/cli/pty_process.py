"""A command in a terminal of its own: what it shows, what is typed, how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

DEADLINE_S = 60.0


class Terminal:
    """A process whose terminal is this."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, columns: int, rows: int = 24) -> None:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(inner)
        self.shown = b""

    def wait_for(self, text: bytes, times: int = 1) -> bytes:
        """Read until it has shown a text so often. Raises: AssertionError."""
        ends = time.monotonic() + DEADLINE_S
        while self.shown.count(text) < times:
            assert select.select([self._fd], [], [], max(ends - time.monotonic(), 0))[0], self.shown
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other end is closed
                data = b""
            assert data, self.shown
            self.shown += data
        return self.shown

    def interrupt(self) -> int:
        """What Ctrl-C does; the exit status."""
        self.process.send_signal(2)
        ends = time.monotonic() + DEADLINE_S
        while select.select([self._fd], [], [], max(ends - time.monotonic(), 0))[0]:
            try:
                self.shown += os.read(self._fd, 65536)
            except OSError:  # the last process let go of its end, and all that it wrote has been read
                break
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)
