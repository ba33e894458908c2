"""Output of a sandbox (stdout and stderr): read continuously, stored up to a limit, per request.

Owns the read end of the pipe. It is always drained, so that a handler never blocks on its log; bytes over the limit are counted
and discarded.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from collections.abc import Callable
from contextlib import ExitStack

from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.read_turns import READ_BYTES, ReadTurns, Series

PIPE_BYTES = 256 * 1024
WRITABLE = 0o622
"""A program may open its output again, as /dev/stdout, where web servers log to: the pipe is ours, and the program has another
uid. No other process has a path to it."""

_scratch = memoryview(bytearray(READ_BYTES))
"""Where all outputs read to."""
_waiting = array.array("i", [0])
"""Where FIONREAD puts its answer."""
_unfollowed = LiveOutput()
"""The live output of a sandbox whose output was never started."""
_always = LiveOutput()
"""That of a sandbox whose output is delivered."""
_always.shows[""] = lambda request_id, kept: None


class Output:
    """`start` begins to read; `take` gives what was written since the last take. `limit_bytes` may be set until the first
    byte comes."""

    def __init__(self, fd: int, limit_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self.limit_bytes = limit_bytes
        self._kept = bytearray()
        self._dropped = 0
        self._turns: ReadTurns
        self._live = _unfollowed
        self._show: Callable[[bytearray], None]
        self._series = Series()
        self._is_over = False
        """Every writer is gone."""

    @classmethod
    def open(cls, limit_bytes: int) -> tuple[Output, int]:
        """A pipe: our end, and the fd of the write end, which the caller owns. Raises: OSError, also when the pipe cannot be as
        large as it should."""
        read_fd, write_fd = os.pipe()
        with ExitStack() as undo:
            undo.callback(os.close, read_fd)
            undo.callback(os.close, write_fd)
            fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            os.set_blocking(read_fd, False)
            os.fchmod(read_fd, WRITABLE)
            undo.pop_all()
        return cls(read_fd, limit_bytes), write_fd

    def start(self, turns: ReadTurns, live: LiveOutput, show: Callable[[bytearray], None]) -> None:
        """Drain it from now on. Args: show: called after a read with all that is kept, if any function is followed."""
        self._turns, self._live, self._show = turns, live, show
        live.outputs.add(self.show_kept)
        self._loop.add_reader(self._fd, self._readable)

    def deliver(self, show: Callable[[bytearray], None]) -> None:
        """Show after each read, from now on, all that is kept, whether any function is followed or not."""
        self._live.outputs.discard(self.show_kept)
        self._live, self._show = _always, show
        self.show_kept()

    def show_kept(self) -> None:
        """Pass on what was read before anybody followed."""
        if self._kept:
            self._show(self._kept)

    def take(self) -> tuple[bytes, int]:
        """(bytes kept, bytes dropped) since the last call, with all that is in the pipe by now."""
        if self._fd >= 0:
            # Most print nothing: asking costs a quarter of a read that fails.
            fcntl.ioctl(self._fd, termios.FIONREAD, _waiting)
            if _waiting[0]:
                self._drain()
        if not self._kept and not self._dropped:
            return b"", 0
        taken = bytes(self._kept), self._dropped
        self._kept.clear()
        self._dropped = 0
        return taken

    def close(self) -> None:
        """Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._live.outputs.discard(self.show_kept)
            self._loop.remove_reader(fd)
            os.close(fd)

    def go_on(self) -> int:
        """Its turn in the queue where it waits; how many units of work that was."""
        if self._fd < 0:
            return 0
        size = self._read()
        if size:
            self._wait(size)
        elif not self._is_over:
            self._loop.add_reader(self._fd, self._readable)
        return size >> 10

    def _readable(self) -> None:
        size = self._read()
        if size == READ_BYTES or (size and self._series.is_too_long()):
            self._loop.remove_reader(self._fd)
            self._wait(size)

    def _wait(self, size: int) -> None:
        """Go on in a turn of a queue, unwatched until then."""
        (self._turns.bulk if size == READ_BYTES else self._turns.small).wait(self)

    def _drain(self) -> None:
        """Not until it is empty: a handler's threads may write as fast as this reads."""
        for _ in range(PIPE_BYTES // READ_BYTES):
            if self._read() < READ_BYTES:
                break

    def _read(self) -> int:
        """Take out what one read gives; how much that was."""
        try:
            size = os.readv(self._fd, [_scratch])
        except BlockingIOError:
            return 0
        if not size:
            self._is_over = True
            self._loop.remove_reader(self._fd)
            return 0
        room = max(0, self.limit_bytes - len(self._kept))
        self._kept += _scratch[: min(size, room)]
        self._dropped += max(0, size - room)
        if self._live.shows:
            self._show(self._kept)
        return size
