"""What a client may send that no HTTP library would: bytes as they are, and signatures of any time and key."""

from __future__ import annotations

import contextlib
import datetime
import errno
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPResponse
from unittest import mock

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.daemon.aws_client import KEY, SECRET
from tests.daemon.running import Answer

ECHO = "seen = []\ndef f(event):\n    seen.append(event)\n    return seen\n"
DEADLINE_S = 60.0
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) (?:[^\r]+\r\n)+?content-length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")


def statuses(port: int, pieces: Sequence[bytes]) -> list[int]:
    """Return the statuses of all answers to these bytes, sent piece by piece, as far as the server's end of the connection.

    Raises: TimeoutError, when the server neither answers nor ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = b""
        try:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        except OSError as error:  # it has refused what came first, and will not read on: what it said is there
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
        with contextlib.suppress(ConnectionError):
            while more := client.recv(1 << 16):
                said += more
    return list(_statuses(said))


def _statuses(said: bytes) -> Iterator[int]:
    """Raises: AssertionError, when it is anything but whole answers."""
    while said:
        head = _HEAD.match(said)
        assert head, said[:200]
        yield int(head[1])
        said = said[head.end() + int(head[2]) :]


def answer(port: int, request: bytes) -> Answer:
    """The first answer to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(request)
        response = HTTPResponse(client)
        response.begin()
        body = response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def message(method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A request as bytes; whatever is in a target stays."""
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


class Signer:
    """AWS's signature, by botocore."""

    def __init__(self, url: str) -> None:
        self._url = url

    def headers(
        self, method: str, target: str, body: bytes = b"", *, secret: str = SECRET, ago_s: float = 0.0
    ) -> dict[str, str]:
        """What a request is signed with. Args: ago_s: how old the signature is to be, in seconds."""
        request = AWSRequest(method, self._url + target, data=body)
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago_s)
        with mock.patch("botocore.auth.get_current_datetime", return_value=then):
            SigV4Auth(Credentials(KEY, secret), "lambda", "us-east-1").add_auth(request)
        return {"Host": self._url.removeprefix("http://"), **dict(request.headers.items())}
