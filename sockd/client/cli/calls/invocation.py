"""An invocation by the command line: POST /run/<name>, and a streamed answer.

Owns its connection. Every failure is an `output.Failure` with its exit status.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sockd.client.console.client import NO_QUERY, Query, Reply, chosen_worker, patience, quoted, up_command, words
from sockd.client.console.output import UNREACHABLE, USAGE, Failure
from sockd.client.python.connections import EXAMPLE_URL, UnixConnection

PIECE_BYTES = 64 * 1024


class Answer:
    """A partial answer: status and headers, and then the body, once."""

    def __init__(self, response: http.client.HTTPResponse, name: str) -> None:
        self.status = response.status
        self.headers = {field.lower(): value for field, value in response.getheaders()}
        self._response = response
        self._name = name

    def pieces(self) -> Iterator[bytes]:
        """Stream the body. Raises: Failure if it is shorter than announced."""
        size = 0
        while piece := self._read():
            size += len(piece)
            yield piece
        if size < int(self.headers.get("content-length", size)):  # read1 takes the connection's end for the body's
            raise self._broken_off("the connection ended")

    def whole(self) -> Reply:
        """All of it."""
        return Reply(self.status, self.headers, b"".join(self.pieces()))

    def _read(self) -> bytes:
        try:
            return self._response.read1(PIECE_BYTES)
        except http.client.IncompleteRead:
            raise self._broken_off("the function failed while streaming") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._broken_off(words(error)) from None

    def _broken_off(self, why: str) -> Failure:
        request = self.headers.get("x-amzn-requestid")
        fix = f"sockd logs {self._name}" + (f" --request {request}" if request else "")
        return Failure("the answer is incomplete", why=why, fix=fix)


@contextmanager
def invoked(url: str | None, state_dir: Path, name: str, payload: bytes, headers: Query = NO_QUERY) -> Iterator[Answer]:
    """Invoke NAME[:version or alias] at an address; None: over the Unix socket of the worker that has this directory, or
    through the management API of the one elsewhere that was chosen.

    Raises: Failure if nothing answers there, or another user's process does."""
    worker = chosen_worker() if url is None else None
    where, fix = url or str(state_dir / "run.sock"), up_command(state_dir)
    if worker is None:
        prefix, connection = _api(url, state_dir)
        target = f"{prefix}/run/{quoted(name, safe=':$')}"
    else:
        where, fix, connection = worker.url, f"sockd login {worker.url}", worker.connection()
        target = f"{worker.prefix}/functions/{quoted(name)}/invoke"
        headers = {**headers, **worker.headers}
    with closing(connection):
        try:
            connection.request("POST", target, payload, dict(headers))
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            what = f"no worker answers at {where}"
            raise Failure(what, why=words(error), fix=fix, exit_code=UNREACHABLE) from None
        yield Answer(response, name)


def _api(url: str | None, state_dir: Path) -> tuple[str, http.client.HTTPConnection]:
    """The prefix of request paths, and a connection. Raises: Failure."""
    if url is None:
        return "", UnixConnection(state_dir / "run.sock", patience=patience())
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise Failure(f"{url!r} is not a URL such as {EXAMPLE_URL}", exit_code=USAGE)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return parts.path.rstrip("/"), kind(host, port)
