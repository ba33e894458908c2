"""Answers on their way out: zero-copy from files, and as slow or as wrong as a rule asks."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time

from sockd.s3.answer import Answer, FileSlice
from sockd.s3.faults import Rule
from sockd.s3.request_log import Record, RequestLog

SENDFILE_BYTES = 8 << 20
SMALL_BYTES = 64 << 10
"""Of a file: read and sent with the head, in one system call and one packet."""
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
        if isinstance(body, FileSlice):
            if length > SMALL_BYTES:
                self._socket.send(head, socket.MSG_MORE)
                self._send_file(body, 0, length, record)
                return
            data = os.pread(body.fd, length, body.offset) if length else b""
        else:
            data = body[:length]
        self._socket.sendall(head + data)
        record.bytes += len(data)

    def _send_paced(self, answer: Answer, length: int, bytes_s: float, record: Record) -> None:
        """Every byte leaves when a line of this bandwidth would have brought it."""
        piece = max(int(bytes_s * PACE_S), 1)
        begun = time.monotonic()
        sent = 0
        while sent < length:
            count = min(piece, length - sent)
            self._wait_until(begun + (sent + count) / bytes_s)
            if sent + count == length:
                self._log.finishing(record)
            if isinstance(answer.body, FileSlice):
                self._send_file(answer.body, sent, count, record)
            else:
                self._socket.sendall(answer.body[sent : sent + count])
                record.bytes += count
            sent += count

    def _send_file(self, body: FileSlice, start: int, count: int, record: Record) -> None:
        offset, end = body.offset + start, body.offset + start + count
        while offset < end:
            sent = os.sendfile(self._socket.fileno(), body.fd, offset, min(end - offset, SENDFILE_BYTES))
            if not sent:
                raise OSError(f"the file ended {end - offset} bytes early")
            offset += sent
            record.bytes += sent

    def _wait_until(self, when_s: float) -> None:
        """Raises ConnectionAbortedError as soon as the client has gone, or the server ends."""
        whole_ms = int((when_s - time.monotonic()) * 1000)
        if whole_ms > 0 and self._hangup.poll(whole_ms):  # the server cuts connections when it ends
            raise ConnectionAbortedError("the client has gone")
        left_s = when_s - time.monotonic()
        if left_s > 0:
            self._stopping.wait(left_s)
