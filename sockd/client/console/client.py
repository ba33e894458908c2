"""The management client of the command line: over a worker's Unix socket, or over https (`--worker`).

Owns one connection per call. Every failure is an `output.Failure` with its exit status.
"""

from __future__ import annotations

import copy
import grp
import http.client
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click
from click.core import ParameterSource

from sockd.base.own_command import runnable, same_as_root
from sockd.client.console.output import NOT_FOUND, UNREACHABLE, USAGE, Failure, exit_code_of
from sockd.client.python.connections import DEFAULT_STATE_DIR, EXAMPLE_URL, UnixConnection
from sockd.client.python.starting import Patience
from sockd.client.python.workers import WORKER_VARIABLE, BadLogin, RemoteWorker, worker_at

Query = Mapping[str, str]
NO_QUERY: Query = {}

_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,64}(:(\$LATEST|[A-Za-z0-9_-]{1,128}))?")
_LISTS = {
    "functions": "sockd ls",
    "events": "sockd events ls",
    "schedules": "sockd schedule ls",
    "traces": "sockd trace",
    "packages": "sockd packages ls",
    "images": "sockd images ls",
    "keys": "sockd keys ls",
}
"""The command that lists the objects of a path."""

_LISTING = re.compile(r"; `(sockd [^`]+)` lists them$")

_PATIENCE, _WORKER, _MEMBER = "sockd.patience", "sockd.worker.worker", "sockd.worker.member"
_MEMBER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ABSENT_S = 0.5
"""Default time to wait for a worker without a lock, which may have been started just before."""


def _be_patient(ctx: click.Context, parameter: click.Parameter, seconds: float | None) -> None:
    if seconds is not None:
        ctx.meta[_PATIENCE] = Patience(seconds, seconds)


def patience() -> Patience:
    ctx = click.get_current_context(silent=True)
    wanted: Patience = (ctx.meta if ctx else {}).get(_PATIENCE, Patience(absent_s=_ABSENT_S))
    return wanted


def _be_elsewhere(ctx: click.Context, parameter: click.Parameter, url: str | None) -> None:
    if url and _MEMBER_NAME.fullmatch(url):
        ctx.meta[_MEMBER] = url
        url = os.environ.get(WORKER_VARIABLE, "")  # a worker of the same group, unless this name is from there
    if url and not _MEMBER_NAME.fullmatch(url):
        ctx.meta[_WORKER] = url


def chosen_worker() -> RemoteWorker | None:
    """The remote worker of the command; None: the one of --state-dir. Raises: Failure."""
    url = _chosen_url()
    try:
        return worker_at(url) if url is not None else None
    except BadLogin as error:
        raise Failure(str(error), fix=error.fix, exit_code=USAGE) from None


def _chosen_url() -> str | None:
    ctx = click.get_current_context(silent=True)
    url: str | None = (ctx.meta if ctx else {}).get(_WORKER)
    if ctx is None or url is None:
        return None
    is_given = ctx.get_parameter_source("worker") is ParameterSource.COMMANDLINE and _MEMBER not in ctx.meta
    is_overruled = not is_given and ctx.get_parameter_source("state_dir") is ParameterSource.COMMANDLINE
    return None if is_overruled else url


def chosen_member() -> str:
    """Return the name of the worker that --worker selects in the group; empty: none."""
    ctx = click.get_current_context(silent=True)
    name: str = (ctx.meta if ctx else {}).get(_MEMBER, "")
    return name


def state_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --state-dir, a parameter of the command, and --wait and --worker, which `Management` reads."""
    worker = click.option(
        "--worker",
        envvar=WORKER_VARIABLE,
        show_envvar=True,
        metavar="URL|NAME",
        expose_value=False,
        callback=_be_elsewhere,
        help="A remote worker (sockd login); replaces --state-dir. Or the name of a worker of the group, to read what it has.",
    )
    wait = click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        expose_value=False,
        callback=_be_patient,
        help="Time to wait for a worker.  [default: 10 if it is starting]",
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
    return state_dir(worker(wait(command)))


def refuse_elsewhere(command: str) -> None:
    """Raises: Failure if a remote worker is selected: the command is for the machine of the worker."""
    if _chosen_url() is not None:
        why = f"{WORKER_VARIABLE} or --worker selects a worker on another machine"
        fix = f"env -u {WORKER_VARIABLE} {runnable(command)}"
        raise Failure(f"{command} works on this machine only", why=why, fix=fix, exit_code=USAGE)


class Reply(NamedTuple):
    """One answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Management:
    """The management API of the worker with this state directory, or of the selected remote worker."""

    def __init__(self, state_dir: Path) -> None:
        """Raises: Failure if a remote worker is selected and has no stored key."""
        self._socket = state_dir / "sockd.sock"
        self._worker = chosen_worker()
        self.member = chosen_member()
        """The worker of the group that is asked through the other one; empty: the other one itself."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the worker is remote, so that its addresses may not be valid here."""
        return self._worker is not None

    def of_member(self, name: str) -> Management:
        """Return the management API of a worker of the group, through this one."""
        other = copy.copy(self)
        other.member = name
        return other

    def get(self, *path: str, query: Query = NO_QUERY) -> Any:
        """GET, as parsed JSON. Raises: Failure."""
        return self.call("GET", *path, query=query)

    def call(self, method: str, *path: str, body: bytes | None = None, query: Query = NO_QUERY) -> Any:
        """Any method, as parsed JSON. Raises: Failure."""
        reply = self.exchange(method, *path, body=body, query=query)
        answer = self._parsed(reply.status, reply.body)
        if reply.status != 200:
            raise self.failure(reply.status, answer, path)
        return answer

    def exchange(
        self,
        method: str,
        *path: str,
        body: bytes | None = None,
        query: Query = NO_QUERY,
        headers: Query = NO_QUERY,
    ) -> Reply:
        """One request and its complete answer, with any status."""
        with self._reached() as connection:
            return _exchange(connection, method, self._target(method, path, query), body, self._headers(headers))

    def lines(
        self,
        method: str,
        *path: str,
        body: bytes | Iterable[bytes] | None = None,
        query: Query = NO_QUERY,
        headers: Query = NO_QUERY,
    ) -> Iterator[dict[str, Any]]:
        """Stream an answer of JSON lines. Raises: Failure, also for an error line."""
        with self._reached() as connection:
            # A worker that refuses a long body answers before it has read all of it, and closes.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._target(method, path, query), body, self._headers(headers))
            response = connection.getresponse()
            if response.status != 200:
                raise self.failure(response.status, self._parsed(response.status, response.read()), path)
            for line in response:
                message: dict[str, Any] = json.loads(line)
                if "error" in message:
                    raise self.failure(message["status"], message["error"], path)
                yield message

    def result(
        self,
        lines: Iterable[dict[str, Any]],
        show: Callable[[str], object],
        note: Callable[[str], object] | None = None,
    ) -> Any:
        """The last of an answer's `lines`; those before it are shown.

        Args: show: a line that says what is done now; note: one that stays; None: as the others.
        Raises: Failure, also if there is no last line."""
        for line in lines:
            if "result" in line:
                return line["result"]
            (note if note is not None and line.get("note") else show)(line["progress"])
        raise Failure(
            "the worker stopped before the command ended", why="the connection ended", fix=self._status_command()
        )

    def failure(self, status: int, error: Mapping[str, Any], path: tuple[str, ...]) -> Failure:
        """Convert a typed error of the worker."""
        message = str(error.get("errorMessage", f"status {status}"))
        elsewhere = f"sockd login {self._worker.url}" if self._worker is not None else ""
        exit_code, fix = exit_code_of(status), elsewhere if status == 401 else ""
        if len(path) > 1 and path[0] == "functions":
            exit_code = exit_code_for(status, path[1])
        if exit_code == NOT_FOUND:
            fix = listing(message) or _LISTS.get(path[0], "")
        if fix == "sockd ls" and len(path) > 1:
            names = self._names()
            close = [] if path[1] in names else get_close_matches(path[1], names, n=1)
            message += f"; did you mean {close[0]}?" if close else ""
        # Of a deploy whose new version does not start; of a request, `sockd invoke` shows it itself.
        stack = "".join(map(str, error.get("stackTrace") or ())).rstrip()
        return Failure(message, why=stack, kind=str(error.get("errorType", "")), fix=fix, exit_code=exit_code)

    def check_function(self, name: str) -> None:
        """Raises: Failure if no function has this name."""
        self.get("functions", name.partition(":")[0])

    def _status_command(self) -> str:
        if self._worker is not None:
            return f"sockd status --worker {shlex.quote(self._worker.url)}"
        return f"sockd status{state_dir_words(self._socket.parent)}"

    def _parsed(self, status: int, body: bytes) -> Any:
        try:
            answer = json.loads(body)
            if status == 200 or isinstance(answer, dict):
                return answer
        except ValueError:  # a page of the worker's public port, or a proxy's
            pass
        raise no_management(self._worker.url if self._worker else str(self._socket), status)

    def _names(self) -> list[str]:
        reply = self.exchange("GET", "functions")  # which a key may not see
        return [function["name"] for function in self._parsed(200, reply.body)] if reply.status == 200 else []

    def _target(self, method: str, path: tuple[str, ...], query: Query) -> str:
        """Raises: Failure: a worker of the group is asked through another one for more than what it has."""
        if self.member and method != "GET":
            what = f"--worker {self.member} is a name, and this command does more than read"
            fix = "leave --worker out: a change holds in the whole group; or name that worker by its address"
            raise Failure(what, fix=fix, exit_code=USAGE)
        of_member = _target(("workers", self.member), NO_QUERY) if self.member else ""
        return (self._worker.prefix if self._worker is not None else "") + of_member + _target(path, query)

    def _headers(self, headers: Query) -> dict[str, str]:
        return {**headers, **(self._worker.headers if self._worker is not None else {})}

    @contextmanager
    def _reached(self) -> Iterator[http.client.HTTPConnection]:
        fix = up_command(self._socket.parent) if self._worker is None else f"sockd login {self._worker.url}"
        where = str(self._socket) if self._worker is None else self._worker.url
        try:
            with closing(self._connection()) as connection:
                yield connection
        except PermissionError:
            manager = _managing_group(self._socket)
            why = f"{where} is {f'for root and the group {manager}' if manager else 'for root alone'}"
            what = "this user may not manage the worker"
            fix = f"sudo usermod -aG {manager} $USER, and log in again" if manager else same_as_root()
            raise Failure(what, why=why, fix=fix, exit_code=UNREACHABLE) from None
        except (OSError, http.client.HTTPException) as error:
            is_there = self._worker is not None or self._socket.parent.is_dir()
            why = f"{where}: {words(error)}" if is_there else f"{self._socket.parent} is not there"
            raise Failure("no worker answers", why=why, fix=fix, exit_code=UNREACHABLE) from None

    def _connection(self) -> http.client.HTTPConnection:
        if self._worker is not None:
            return self._worker.connection()
        return UnixConnection(self._socket, patience=patience())


def public_url(state_dir: Path) -> str:
    """The address of the worker's public port; the default one if no worker answers, so that hints have an address."""
    with suppress(Failure):
        if (state_dir / "sockd.sock").exists() or _chosen_url() is not None:
            return str(Management(state_dir).get("status")["url"])
    return EXAMPLE_URL


def no_management(where: str, status: int) -> Failure:
    """The server at this address is not a worker's management API."""
    why = f"status {status}; check that this is the address of its management.listen"
    return Failure(f"{where} does not answer like a worker's management port", why=why)


def _managing_group(path: Path) -> str:
    """The group of a management socket; empty: only root."""
    try:
        gid = path.stat().st_gid
        return grp.getgrgid(gid).gr_name if gid else ""
    except (OSError, KeyError):
        return ""


def listing(message: str) -> str:
    """The command with which the worker's error ends, if it names one that lists what there is."""
    found = _LISTING.search(message)
    return found[1] if found else ""


def exit_code_for(status: int, name: str) -> int:
    """The exit status for an answer about a function: an invalid name is also "not found"."""
    return NOT_FOUND if status == 400 and not _FUNCTION.fullmatch(name) else exit_code_of(status)


def up_command(state_dir: Path) -> str:
    """The command that starts the worker of a directory."""
    return f"sudo sockd up{state_dir_words(state_dir)}"


def state_dir_words(state_dir: Path) -> str:
    """The option for a command to the worker of a directory, with a space before it; nothing for the default."""
    return f" --state-dir {shlex.quote(str(state_dir))}" if str(state_dir) != DEFAULT_STATE_DIR else ""


def words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: Query = NO_QUERY
) -> Reply:
    connection.request(method, target, body, dict(headers))
    response = connection.getresponse()
    fields = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, fields, response.read())


def _target(path: tuple[str, ...], query: Query) -> str:
    target = "/" + "/".join(map(quoted, path))
    pairs = "&".join(f"{key}={quoted(value)}" for key, value in query.items())
    return f"{target}?{pairs}" if pairs else target


def quoted(text: str, safe: str = "") -> str:
    """Quote a text for a URL; the worker refuses invalid UTF-8."""
    return quote(text, safe=safe, errors="surrogateescape")
