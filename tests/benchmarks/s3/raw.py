"""A bare HTTP/1.1 connection that signs on request: for what no library would send."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from xml.etree import ElementTree

from benchmarks.s3.process import S3Process
from sockd.base.sigv4.signer import Signer


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def code(self) -> str:
        """The error's name."""
        return ElementTree.fromstring(self.body).findtext("Code") or ""


class Raw:
    """One connection."""

    def __init__(self, s3: S3Process) -> None:
        address = urlsplit(s3.url)
        assert address.hostname and address.port
        self.host = address.netloc
        self.credentials = s3.credentials
        self.socket = socket.create_connection((address.hostname, address.port), 10)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def signed(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        payload: bytes | str = b"",
        unsigned: Mapping[str, str] | None = None,
    ) -> bytes:
        """The head of a signed request; `unsigned` headers are added after signing."""
        target = f"{path}?{query}" if query else path
        signed = {"Host": self.host, **(headers or {})}
        Signer(self.credentials, service="s3").sign(method, target, signed, payload)
        lines = [f"{name}: {value}" for name, value in {**signed, **(unsigned or {})}.items()]
        return "\r\n".join((f"{method} {target} HTTP/1.1", *lines, "", "")).encode("latin-1")

    def exchange(self, data: bytes) -> RawAnswer:
        self.socket.sendall(data)
        return self.receive(head_only=data.startswith(b"HEAD "))

    def get(self, path: str, query: str = "", headers: Mapping[str, str] | None = None) -> RawAnswer:
        return self.exchange(self.signed("GET", path, query, headers))

    def put(self, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> RawAnswer:
        length = {"Content-Length": str(len(data))}
        return self.exchange(self.signed("PUT", path, "", headers, payload=data, unsigned=length) + data)

    def receive(self, *, head_only: bool = False) -> RawAnswer:
        """The next answer. Raises EOFError when the server closes within it; the part of the body is its argument."""
        while b"\r\n\r\n" not in self._buffer:
            self._fill()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        status = int(first.split()[1])
        length = 0 if head_only or status in (100, 204, 304) else int(headers["content-length"])
        while len(self._buffer) < length:
            self._fill()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return RawAnswer(status, headers, body)

    def at_end(self) -> bool:
        """Whether the server has closed, now that it has nothing to say."""
        return not self._buffer and self.socket.recv(1) == b""

    def _fill(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(self._buffer)
        self._buffer += data
