"""The worker as the command line reaches it: management over its Unix socket, invocations over HTTP.

Owns a connection per call. Every failure is an `output.Failure` with the exit status that fits.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import click

from sockd.cli.output import UNREACHABLE, USAGE, Failure, exit_code_of
from sockd.remote.connections import DEFAULT_STATE_DIR, EXAMPLE_URL, UnixConnection
from sockd.remote.starting import Patience

Query = Mapping[str, str]
NO_QUERY: Query = {}

_PATIENCE = "sockd.patience"
_ABSENT_S = 0.5
"""How long a worker is waited for by default that has no lock yet: one that was started just before."""


def _be_patient(ctx: click.Context, parameter: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        ctx.meta[_PATIENCE] = Patience(seconds, seconds)


def _patience() -> Patience:
    ctx = click.get_current_context(silent=True)
    patience: Patience = (ctx.meta if ctx else {}).get(_PATIENCE, Patience(absent_s=_ABSENT_S))
    return patience


def state_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--state-dir, a parameter of the command, and --wait, which connections heed."""
    wait = click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        expose_value=False,
        callback=_be_patient,
        help="How long to wait for a worker to listen.  [default: 10 for one that is starting]",
    )
    state_dir = click.option(
        "--state-dir",
        envvar="SOCKD_STATE_DIR",
        default=DEFAULT_STATE_DIR,
        show_default=True,
        show_envvar=True,
        type=click.Path(path_type=Path, readable=False),  # others may pass it, mode 0711, and not list it
        help="The worker's directory.",
    )
    return state_dir(wait(command))


class Reply(NamedTuple):
    """One answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Management:
    """The management door of the worker that has this state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._socket = state_dir / "sockd.sock"

    def get(self, *path: str, query: Query = NO_QUERY) -> Any:
        """GET, as parsed JSON. Raises: Failure."""
        return self.call("GET", *path, query=query)

    def call(self, method: str, *path: str, body: bytes | None = None, query: Query = NO_QUERY) -> Any:
        """Any method, as parsed JSON. Raises: Failure."""
        reply = self.exchange(method, *path, body=body, query=query)
        if reply.status != 200:
            raise self.failure(reply.status, _error(reply.body), path)
        return json.loads(reply.body)

    def exchange(
        self,
        method: str,
        *path: str,
        body: bytes | None = None,
        query: Query = NO_QUERY,
        headers: Query = NO_QUERY,
    ) -> Reply:
        """One request and its whole answer, whatever its status."""
        with self._reached() as connection:
            return _exchange(connection, method, _target(path, query), body, headers)

    def lines(
        self,
        method: str,
        *path: str,
        body: bytes | None = None,
        query: Query = NO_QUERY,
        headers: Query = NO_QUERY,
    ) -> Iterator[dict[str, Any]]:
        """An answer of JSON lines, as they come. Raises: Failure, also for one that a line brings."""
        with self._reached() as connection:
            connection.request(method, _target(path, query), body, dict(headers))
            response = connection.getresponse()
            if response.status != 200:
                raise self.failure(response.status, _error(response.read()), path)
            for line in response:
                message: dict[str, Any] = json.loads(line)
                if "error" in message:
                    raise self.failure(message["status"], message["error"], path)
                yield message

    def failure(self, status: int, error: Mapping[str, Any], path: tuple[str, ...]) -> Failure:
        """A typed error of the worker, for a person."""
        message = str(error.get("errorMessage", f"status {status}"))
        fix = ""
        if status == 404 and len(path) > 1 and path[0] == "functions":
            names = [function["name"] for function in self.get("functions")]
            close = [] if path[1] in names else get_close_matches(path[1], names, n=1)
            message += f"; did you mean {close[0]}?" if close else ""
            fix = "sockd ls"
        return Failure(message, why=str(error.get("errorType", "")), fix=fix, exit_code=exit_code_of(status))

    @contextmanager
    def _reached(self) -> Iterator[http.client.HTTPConnection]:
        fix = _up(self._socket.parent)
        try:
            with closing(UnixConnection(self._socket, patience=_patience())) as connection:
                yield connection
        except PermissionError:
            why = f"{self._socket} is root's alone"
            raise Failure("only root manages a worker", why=why, fix="sudo sockd ...", exit_code=UNREACHABLE) from None
        except (OSError, http.client.HTTPException) as error:
            why = f"{self._socket}: {_words(error)}"
            raise Failure("no worker answers", why=why, fix=fix, exit_code=UNREACHABLE) from None


def invoke_at(url: str | None, state_dir: Path, name: str, payload: bytes, headers: Query = NO_QUERY) -> Reply:
    """POST /run/<name>[:version or alias] at an address; None: over the Unix socket of the worker that has this directory.

    Raises: Failure if nothing answers there, or another user's process does."""
    where = url or str(state_dir / "run.sock")
    prefix, connection = _public_door(url, state_dir)
    try:
        with closing(connection):
            return _exchange(connection, "POST", f"{prefix}/run/{_quoted(name, safe=':$')}", payload, headers)
    except http.client.IncompleteRead as error:
        what = f"the answer broke off after {len(error.partial)} bytes"
        raise Failure(what, why="what streams it failed", fix=f"sockd logs {name}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(
            f"no worker answers at {where}", why=_words(error), fix=_up(state_dir), exit_code=UNREACHABLE
        ) from None


def _public_door(url: str | None, state_dir: Path) -> tuple[str, http.client.HTTPConnection]:
    """What comes before the path of a request, and a connection. Raises: Failure."""
    if url is None:
        return "", UnixConnection(state_dir / "run.sock", patience=_patience())
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise Failure(f"{url!r} is not a URL such as {EXAMPLE_URL}", exit_code=USAGE)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return parts.path.rstrip("/"), kind(host, port)


def _up(state_dir: Path) -> str:
    """The command that starts the worker of a directory."""
    return "sudo sockd up" + (f" --state-dir {state_dir}" if str(state_dir) != DEFAULT_STATE_DIR else "")


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: Query = NO_QUERY
) -> Reply:
    connection.request(method, target, body, dict(headers))
    response = connection.getresponse()
    fields = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, fields, response.read())


def _target(path: tuple[str, ...], query: Query) -> str:
    target = "/" + "/".join(map(_quoted, path))
    pairs = "&".join(f"{key}={_quoted(value)}" for key, value in query.items())
    return f"{target}?{pairs}" if pairs else target


def _quoted(text: str, safe: str = "") -> str:
    """A text as it is in a URL; the worker refuses bytes that are no UTF-8."""
    return quote(text, safe=safe, errors="surrogateescape")


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)
    except ValueError:
        return {"errorMessage": body[:500].decode(errors="replace")}
    return error if isinstance(error, dict) else {"errorMessage": str(error)}
