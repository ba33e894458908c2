"""What a function prints, shown on stderr where it is called: whole lines while it runs, the rest with its end.

Read over the management socket, so only who manages the worker is shown anything. Owns one thread for each function that is
being called, with a connection, and one more connection for each thread that calls.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from sockd.base.printable import printable, unix_lines
from sockd.client.python.connections import UnixConnection, state_dir
from sockd.client.python.errors import RemoteError

TIMED_OUT = "Sandbox.Timedout"
"""The type of the error of a request whose deadline passed."""
IDLE_S = 2.0
"""How long nothing may come before it is looked at whether anybody still calls."""


@dataclass(slots=True)
class Call:
    """One call that runs."""

    request_id: str
    """Empty: it is not known before the answer."""
    shown_bytes: int = 0


class Printed:
    """The output of one function. Its calls may run in several threads at once."""

    def __init__(self, name: str) -> None:
        self._path = f"/functions/{quote(name, safe='')}/logs"
        self._lock = threading.Lock()
        self._calls: dict[str, Call] = {}
        self._is_following = False
        self._own = threading.local()
        """Each calling thread's connection."""

    @contextlib.contextmanager
    def during(self, request_id: str) -> Iterator[Call]:
        """Show what a call prints; the caller sets its `request_id` when the answer tells."""
        call = Call(request_id)
        if request_id:
            self._begin(call)
        failed = ""
        try:
            yield call
        except RemoteError as error:
            failed = error.type
            raise
        finally:
            self._end(call, failed)

    def _begin(self, call: Call) -> None:
        with self._lock:
            self._calls[call.request_id] = call
            if not self._is_following:
                self._is_following = True
                threading.Thread(target=self._follow, name="sockd-printed", daemon=True).start()

    def _end(self, call: Call, failed: str) -> None:
        """Show the rest. Args: failed: the type of the error, which ends the log and which the caller raises anyway."""
        text = self._log_of(call.request_id) if call.request_id else b""
        if failed:
            text = without_failure(text, call.request_id, failed)
        with self._lock:
            self._calls.pop(call.request_id, None)
            show(text[call.shown_bytes :])

    def _log_of(self, request_id: str) -> bytes:
        """All that one request has printed."""
        for _ in range(2):  # the kept connection may have been closed meanwhile
            connection: UnixConnection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = UnixConnection(state_dir() / "sockd.sock")
            try:
                connection.request("GET", f"{self._path}?raw=1&recent=1&limit=1&request_id={request_id}")
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self._own.connection = None
                continue
            records = json.loads(body) if response.status == 200 else []
            return b"".join(base64.b64decode(record["raw"]) for record in records)
        return b""

    def _follow(self) -> None:
        """Show lines of running calls, until there have been none for a while."""
        while self._is_wanted():
            # A quiet call takes a new connection from time to time: that is how an idle one is found.
            with (
                contextlib.suppress(TimeoutError),
                contextlib.closing(UnixConnection(state_dir() / "sockd.sock", IDLE_S)) as connection,
            ):
                try:
                    self._read(connection)
                except TimeoutError:
                    raise
                except (OSError, http.client.HTTPException, ValueError):
                    break  # the worker has ended, or the function was removed: `_end` shows what there is
        else:
            return
        with self._lock:
            self._is_following = False

    def _is_wanted(self) -> bool:
        with self._lock:
            self._is_following = bool(self._calls)
            return self._is_following

    def _read(self, connection: UnixConnection) -> None:
        """One stream of records. Raises: TimeoutError, when none has come for a while; OSError; HTTPException."""
        connection.request("GET", f"{self._path}?follow=1&limit=0&raw=1")
        printed: dict[str, int] = {}
        for line in connection.getresponse():
            if line.strip():
                self._take(json.loads(line), printed)
        raise ConnectionError("the stream has ended")

    def _take(self, record: dict[str, object], printed: dict[str, int]) -> None:
        """Take one record. Args: printed: how much of each request this stream has printed; another one may have printed
        more."""
        request_id = str(record.get("request_id"))
        with self._lock:
            call = self._calls.get(request_id)
            if call is None or record["ended"]:
                printed.pop(request_id, None)
                return  # another's, or its caller shows the rest
            data = base64.b64decode(str(record["raw"]))
            begin = printed.get(request_id, 0)
            printed[request_id] = begin + len(data)
            new = data[max(call.shown_bytes - begin, 0) :]
            call.shown_bytes += len(new)
            show(new)


def without_failure(text: bytes, request_id: str, error_type: str) -> bytes:
    """The log of a failed request, but for what the worker has added of the failure: in one line, if the request timed out or the
    log is JSON, or else as AWS's runtime writes an error."""
    begin = text.rfind(b"\n", 0, -1) + 1
    last = text[begin:]
    is_ours = error_type == TIMED_OUT or f'"errorType": {json.dumps(error_type)}'.encode() in last
    if not (is_ours and request_id.encode() in last):
        begin = text.rfind(f"[ERROR] {error_type}: ".encode())
    return text[:begin] if begin >= 0 else text


def show(data: bytes) -> None:
    """Write what a function has printed; what a terminal would obey is escaped."""
    if data:
        text = printable(unix_lines(data.decode(errors="replace")))
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        sys.stderr.flush()
