"""A line to S3 as it is in a data centre, on loopback: `python -m benchmarks.peers.shaping_proxy http://127.0.0.1:9000`.

An HTTP/1.1 proxy that changes no byte (signatures cover the Host header, so the server must take any). Per connection:

    first byte    an answer begins no sooner than --first-byte-ms after its request was fully read
    bandwidth     byte n of a body arrives n / bandwidth after that, in both directions

Time is kept by the clock: a sender that is late catches up. Only a receiver that does not read stops the line. A thread per
connection: timers of an event loop have whole milliseconds, and a piece of the stream is two.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

FIRST_BYTE_MS, BANDWIDTH_MB = 25.0, 60.0
"""The figures of the paper: 18.2 MB, in two requests, take 312 ms without the first byte's wait."""
PIECE_S = 0.002
MAX_HEAD_BYTES = 64 << 10
BUFFER_BYTES = 1 << 20
TLS_HANDSHAKE = b"\x16"
"""With which a client begins that tries HTTPS first."""
REPOSITORY = Path(__file__).resolve().parent.parent.parent
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)


class Ended(Exception):
    """One of the two sides closed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the line is like."""

    first_byte_s: float
    bytes_s: float
    """0: as fast as it goes."""


class Line:
    """One direction to one receiver."""

    def __init__(self, receiver: socket.socket, shape: Shape) -> None:
        self._receiver = receiver
        self._bytes_s = shape.bytes_s
        self.piece = max(int(shape.bytes_s * PIECE_S), 1) if shape.bytes_s else BUFFER_BYTES
        self._begun = 0.0
        self._sent = 0

    def begin(self, when_s: float) -> None:
        """Wait until then (time.monotonic); bytes are counted from there."""
        _sleep_until(when_s)
        self._begun, self._sent = max(when_s, time.monotonic()), 0

    def send(self, data: memoryview) -> None:
        """Send when the last of these bytes would have arrived."""
        if self._bytes_s:
            self._sent += len(data)
            _sleep_until(self._begun + self._sent / self._bytes_s)
        self.send_at_once(data)

    def send_at_once(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._receiver.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                stopped = time.monotonic()
                _wait_for(self._receiver, select.POLLOUT)
                self._begun += time.monotonic() - stopped


class Stream:
    """What comes from one sender, read in pieces."""

    def __init__(self, sender: socket.socket) -> None:
        self.socket = sender
        self._space = memoryview(bytearray(BUFFER_BYTES))
        self._rest = b""

    @property
    def buffered(self) -> bool:
        return bool(self._rest)

    def head(self) -> bytes:
        """A head with its empty line. Raises Ended."""
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise Ended("the head is too long")
            self._rest += self._received(MAX_HEAD_BYTES)
            if self._rest.startswith(TLS_HANDSHAKE):
                raise Ended("it is TLS")
        head, self._rest = self._rest[: end + 4], self._rest[end + 4 :]
        return head

    def pass_on(self, count: int, line: Line) -> None:
        """Give `count` bytes to the line. Raises Ended."""
        while count:
            limit = min(count, line.piece)
            if self._rest:
                piece, self._rest = memoryview(self._rest[:limit]), self._rest[limit:]
            else:
                piece = self._received(limit)
            line.send(piece)
            count -= len(piece)

    def pass_chunks(self, line: Line) -> None:
        """Give a body in chunks, its trailers included, to the line. Raises Ended."""
        while True:
            size_line = self._line(line)
            if not (size := int(size_line.partition(b";")[0], 16)):
                break
            self.pass_on(size + 2, line)
        while self._line(line) != b"\r\n":
            pass

    def pass_all(self, line: Line) -> None:
        """Give everything to the line. Raises Ended, in the end."""
        while True:
            self.pass_on(len(self._rest) or 1, line)

    def _line(self, line: Line) -> bytes:
        while (end := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise Ended("a line is too long")
            self._rest += self._received(MAX_HEAD_BYTES)
        text = self._rest[: end + 2]
        self.pass_on(len(text), line)
        return text

    def _received(self, limit: int) -> memoryview:
        count = self.socket.recv_into(self._space[: min(limit, BUFFER_BYTES)])
        if not count:
            raise Ended("closed")
        return self._space[:count]


class Exchange:
    """One client's connection, and the one to the server that is made for it."""

    def __init__(self, client: socket.socket, server: socket.socket, shape: Shape) -> None:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._shape = shape
        self._client, self._server = Stream(client), Stream(server)
        self._to_client, self._to_server = Line(client, shape), Line(server, shape)

    def run(self) -> None:
        """Until one of the two closes. Raises Ended, OSError."""
        while True:
            self._wait_for_request()
            request = self._client.head()
            self._to_server.begin(time.monotonic())
            self._to_server.send_at_once(memoryview(request))
            # Who expects to be asked for the body sends it only if it is asked.
            answer = self._answer_head() if _EXPECTS.search(request) else b""
            if not answer:
                self._pass_body(request, self._client, self._to_server)
            asked = time.monotonic()
            answer = answer or self._answer_head()
            self._to_client.begin(asked + self._shape.first_byte_s)
            self._to_client.send_at_once(memoryview(answer))
            if not request.startswith(b"HEAD ") and _status(answer) not in (204, 304):
                self._pass_body(answer, self._server, self._to_client, to_the_end=True)

    def _wait_for_request(self) -> None:
        """Raises Ended when the server closes meanwhile, so that the client learns of it before it sends."""
        if not self._client.buffered:
            poll = select.poll()
            poll.register(self._client.socket, select.POLLIN)
            poll.register(self._server.socket, select.POLLIN)
            if any(fd == self._server.socket.fileno() for fd, _ in poll.poll()):
                raise Ended("the server closed")

    def _answer_head(self) -> bytes:
        """The head of the answer; empty if the server first wants the body, which is passed on to the client."""
        head = self._server.head()
        if _status(head) != 100:
            return head
        self._to_client.send_at_once(memoryview(head))
        return b""

    def _pass_body(self, head: bytes, stream: Stream, line: Line, *, to_the_end: bool = False) -> None:
        if _CHUNKED.search(head):
            stream.pass_chunks(line)
        elif found := _LENGTH.search(head):
            stream.pass_on(int(found[1]), line)
        elif to_the_end:
            stream.pass_all(line)


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.shaping_proxy", description="A slower line to a server."
    )
    parser.add_argument("upstream", help="http://host:port of the server")
    parser.add_argument("--first-byte-ms", type=float, default=FIRST_BYTE_MS, help="of an answer (%(default)s)")
    parser.add_argument(
        "--bandwidth-mb", type=float, default=BANDWIDTH_MB, help="10^6 bytes/s; 0: no limit (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--die-on-eof", action="store_true", help="end when standard input ends")
    arguments = parser.parse_args(argv)
    shape = Shape(arguments.first_byte_ms / 1000, arguments.bandwidth_mb * 1e6)
    address = urlsplit(arguments.upstream)
    if not address.hostname or not address.port:
        parser.error("the upstream needs a host and a port")
    if arguments.die_on_eof:
        threading.Thread(target=_exit_at_eof, daemon=True).start()
    with socket.create_server(("127.0.0.1", arguments.port), backlog=1024) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        try:
            while True:
                client, _ = listener.accept()
                target = (address.hostname, address.port)
                threading.Thread(target=_serve, args=(client, target, shape), daemon=True).start()
        except KeyboardInterrupt:
            return 0


@contextlib.contextmanager
def shaping_proxy(
    upstream: str, *, first_byte_ms: float = FIRST_BYTE_MS, bandwidth_mb: float = BANDWIDTH_MB
) -> Iterator[str]:
    """The URL of a proxy in a process of its own, which ends with the context. Raises RuntimeError if it does not start."""
    options = ["--first-byte-ms", str(first_byte_ms), "--bandwidth-mb", str(bandwidth_mb), "--die-on-eof"]
    command = [sys.executable, "-m", "benchmarks.peers.shaping_proxy", upstream, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdin and process.stdout
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the shaping proxy did not start")
        yield url
    finally:
        process.kill()  # it owns nothing but connections
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _serve(client: socket.socket, target: tuple[str, int], shape: Shape) -> None:
    with client, contextlib.suppress(OSError, Ended), socket.create_connection(target) as server:
        Exchange(client, server, shape).run()


def _status(head: bytes) -> int:
    try:
        return int(head.split(b" ", 2)[1])
    except (IndexError, ValueError):
        raise Ended("not an answer") from None


def _sleep_until(when_s: float) -> None:
    left_s = when_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def _wait_for(each: socket.socket, event: int) -> None:
    poll = select.poll()
    poll.register(each, event)
    poll.poll()


def _exit_at_eof() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
