"""An answer on its way out of the sandbox, piece by piece: HEAD and CHUNK frames, and word of a client that has gone.

A write waits while the daemon does not read, as it does not while the client reads slowly.
"""

from __future__ import annotations

import os
import select

from sockd_zygote import _native, protocol


class ClientGone(ConnectionError):
    """Raised when the answer is not read any more; the function may stop."""

    def __init__(self) -> None:
        super().__init__("the client has gone")


class Outlet:
    """`head` once, then `chunk`; in the end `flush`, or `complete` where its maker goes on."""

    gone = False
    """The daemon has said that the client has gone."""
    begun = False
    """A head has been sent: no other answer can be given."""
    is_complete = False
    """The daemon knows that it has all of the body."""

    def __init__(self, channel: int, number: int) -> None:
        """Args: number: of the request."""
        self.channel = channel
        self._number = number
        self._head = b""
        """A head that is to be sent with the first chunk."""
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def head(self, status: object, headers: object) -> None:
        """The answer's status and headers, which may be given anew until the first chunk.

        Raises: ValueError: HTTP cannot say them. RuntimeError: it is too late."""
        if self.begun:
            raise RuntimeError("the answer's head has been sent already")
        self._head = protocol.encode_head(status, headers)

    def chunk(self, data: bytes, *, is_last: bool = False) -> None:
        """A part of the body. Args: is_last: it is `complete` with this one.

        Raises: ClientGone; RuntimeError before there is a head."""
        self.look()
        if self.gone:
            raise ClientGone
        if not data and not is_last:
            return
        frames = self._take_head()
        for start in range(0, len(data), protocol.CHUNK_MAX_BYTES):
            if start:
                self._send(frames)
                frames = []
            part = data[start : start + protocol.CHUNK_MAX_BYTES]
            frames.append(protocol.encode_frame(protocol.CHUNK, self._number, part))
        if is_last:
            frames.append(self._take_end())
        self._send(frames)

    def complete(self) -> None:
        """There is no more, and whatever its maker does from now on is not to cut it. Raises: RuntimeError: there is no head."""
        self._send([*self._take_head(), self._take_end()])

    def flush(self) -> None:
        """Send the head, if it waits for a chunk. Raises: RuntimeError: there is none."""
        self._send(self._take_head())

    def look(self) -> None:
        """Notice what the daemon has said meanwhile, without waiting. Raises: ProtocolError, if it cannot be that."""
        if self.gone or not self._poll.poll(0):
            return
        frame = _native.receive(self.channel)
        if frame is not None and frame[:2] != (protocol.GONE, self._number):
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[frame[0]]} in the middle of an answer")
        self.gone = True

    def _take_head(self) -> list[bytes]:
        if self.begun:
            return []
        if not self._head:
            raise RuntimeError("a body before its status and headers")
        self.begun = True
        return [protocol.encode_frame(protocol.HEAD, self._number, self._head)]

    def _take_end(self) -> bytes:
        self.is_complete = True
        return protocol.encode_frame(protocol.CHUNK, self._number)

    def _send(self, frames: list[bytes]) -> None:
        data = memoryview(b"".join(frames))
        while data:
            data = data[os.write(self.channel, data) :]
