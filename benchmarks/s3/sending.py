"""Answers on their way out: from files without a detour, and as slow or as wrong as a rule asks."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

from benchmarks.s3.answer import Answer, FileSlice
from benchmarks.s3.faults import Rule
from benchmarks.s3.request_log import Record, RequestLog

MAP_BYTES = 64 << 20
SMALL_BYTES = 64 << 10
"""The bytes of a file: read and sent with the head, in one system call and one packet."""
PACE_S = 0.002
"""A shaped body goes out in pieces of this much time."""
_LINGER_NONE = struct.pack("ii", 1, 0)


class Sender:
    """The sending half of one connection.

    Args:
        stopping: set when the server ends; cuts waits short."""

    def __init__(self, connection: socket.socket, log: RequestLog, stopping: threading.Event) -> None:
        self._socket = connection
        self._log = log
        self._stopping = stopping
        self._hangup = select.poll()
        self._hangup.register(connection, select.POLLRDHUP)

    def send(self, answer: Answer, rule: Rule | None, record: Record, more: list[tuple[str, str]]) -> bool:
        """Send all of it that the rule lets through.

        Returns: whether the connection can be used on. Raises OSError."""
        length = 0 if answer.without_body else answer.length
        announced = answer.length
        if rule:
            self._wait_until(time.monotonic() + rule.delay_s)
            announced = max(announced + (rule.wrong_length or 0), 0)
            if rule.truncate_after is not None:
                length = min(length, rule.truncate_after)
            if rule.die_after_headers:
                length = 0
        record.first_byte_ns = time.monotonic_ns()
        head = answer.head(announced, more)
        if rule and rule.bandwidth_bytes_s:
            if not length:
                self._log.finishing(record)
            self._socket.sendall(head)
            self._send_paced(answer, length, rule.bandwidth_bytes_s, record)
        else:
            self._log.finishing(record)
            self._send_at_once(head, answer, length, record)
        if rule and rule.closes:
            if rule.reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            return False
        return True

    def _send_at_once(self, head: bytes, answer: Answer, length: int, record: Record) -> None:
        body = answer.body
        if length <= SMALL_BYTES:
            data = body[:length] if isinstance(body, bytes) else os.pread(body.fd, length, body.offset)
            self._socket.sendall(head + data)
            record.bytes += len(data)
            return
        self._socket.send(head, socket.MSG_MORE)
        for block in _blocks(body, length):
            self._send(block, record)

    def _send_paced(self, answer: Answer, length: int, bytes_s: float, record: Record) -> None:
        """Every byte leaves when a line of this bandwidth would have brought it."""
        size = max(int(bytes_s * PACE_S), 1)
        begun = time.monotonic()
        sent = 0
        for block in _blocks(answer.body, length):
            for start in range(0, len(block), size):
                piece = block[start : start + size]
                sent += len(piece)
                self._wait_until(begun + sent / bytes_s)
                if sent == length:
                    self._log.finishing(record)
                self._send(piece, record)

    def _send(self, data: memoryview, record: Record) -> None:
        start = 0
        while start < len(data):
            count = self._socket.send(data[start:])
            start += count
            record.bytes += count

    def _wait_until(self, when_s: float) -> None:
        """Raises ConnectionAbortedError as soon as the client has gone, or the server ends."""
        whole_ms = int((when_s - time.monotonic()) * 1000)
        if whole_ms > 0 and self._hangup.poll(whole_ms):  # the server cuts connections when it ends
            raise ConnectionAbortedError("the client has gone")
        left_s = when_s - time.monotonic()
        if left_s > 0:
            self._stopping.wait(left_s)


def _blocks(body: bytes | FileSlice, length: int) -> Iterator[memoryview]:
    """The first bytes of a body, of a file as mappings, which end with their last view.

    Not sendfile: on loopback its packets are small (16 pages each), and 13 MB took 5.5 ms instead of 3.5."""
    if isinstance(body, bytes):
        yield memoryview(body)[:length]
        return
    start, end = body.offset, body.offset + length
    while start < end:
        base = start - start % mmap.ALLOCATIONGRANULARITY
        stop = min(end, base + MAP_BYTES)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        yield memoryview(mmap.mmap(body.fd, stop - base, flags=flags, prot=mmap.PROT_READ, offset=base))[start - base :]
        start = stop
