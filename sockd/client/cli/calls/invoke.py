"""`sockd invoke`: run a function once and print its answer."""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from sockd.base.errors import ChunkMissing, ChunkUnreadable, ManifestMissing, OutOfMemory, Tampered
from sockd.client.cli.calls.debugging import DEBUG_PORT, DebugPort, debugged
from sockd.client.cli.calls.invocation import Answer, invoked
from sockd.client.console.client import Management, Reply, exit_code_for, listing, public_url, state_dir_option
from sockd.client.console.inputs import PAYLOAD_BYTES, read_file, read_stdin
from sockd.client.console.output import (
    NOT_FOUND,
    THROTTLED,
    TIMED_OUT,
    USAGE,
    Failure,
    echo,
    json_option,
    print_json,
    say,
    write_result,
)
from sockd.client.python.connections import EXAMPLE_URL

_REFUSED = frozenset({401, 403, 405})
"""Statuses of requests that did not run and have no log."""
NOT_JSON = "InvalidRequestContentException"
NOT_HTTP = "NotHttp"
STORED_AGAIN = tuple(each.error_type for each in (ChunkMissing, ChunkUnreadable, ManifestMissing, Tampered))
"""Errors of images that another deploy ends."""


@click.command()
@click.argument("name")
@click.option("-d", "--data", default="{}", metavar="JSON|@FILE|-", help="The event.  [default: {}]")
@click.option("--url", envvar="SOCKD_URL", show_envvar=True, help="The worker's address; replaces --state-dir.")
@click.option("--async", "later", is_flag=True, help="Run it asynchronously; print the id when it is stored.")
@click.option("--fresh", is_flag=True, help="Use a new sandbox even if one is idle.")
@click.option(
    "--debug",
    type=DebugPort(),
    is_flag=False,
    flag_value=DEBUG_PORT,
    help=f"Use a new sandbox that waits for a debugger (debugpy) on 127.0.0.1, without deadlines.  [default port: {DEBUG_PORT}]",
)
@click.option(
    "--source",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --debug: local path of the code.  [default: the current directory]",
)
@state_dir_option
@json_option
def invoke(
    name: str,
    data: str,
    url: str | None,
    later: bool,
    fresh: bool,
    debug: int | None,
    source: Path,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Run a function once and print its answer.

    The request goes to the worker of --state-dir, over its socket, or to --url. A streamed answer is printed as it arrives."""
    payload = payload_of(data)
    if later and fresh:
        raise Failure("--fresh and --async exclude each other", why="an event runs in any sandbox", exit_code=USAGE)
    headers = {**({"x-amz-invocation-type": "Event"} if later else {}), **({"x-sockd-fresh": "1"} if fresh else {})}
    begun = time.perf_counter()

    def worker_url() -> str:
        return url or public_url(state_dir)

    if debug is not None:
        if later or url is not None:
            why = "it uses the worker's management socket, and waits"
            raise Failure("--debug goes with neither --url nor --async", why=why, exit_code=USAGE)
        reply = debugged(Management(state_dir), name, payload, debug, source)
        _show(reply, name, begun, worker_url, as_json=as_json)
        return
    with invoked(url, state_dir, name, payload, headers) as answer:
        if as_json or answer.status >= 400 or (answer.status == 202 and not _ran(answer)):
            _show(answer.whole(), name, begun, worker_url, as_json=as_json)
        else:
            _pass_on(answer)
            _tell_timing(answer, begun)
        if later and _ran(answer):
            say(
                f"{name} is a web app, which gets each request itself: it ran at once. AWS's Invoke stores an event for it"
            )


def _pass_on(answer: Answer) -> None:
    """Print an answer as it arrives."""
    # Pieces may end within a character: the decoder keeps what is not whole yet.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        for piece in answer.pieces():
            write_result(piece, decoder)
    finally:  # also of an answer that breaks off: the message about that begins a line
        write_result(b"", decoder, final=True)
        write_result(b"\n")


def _show(reply: Reply, name: str, begun: float, worker_url: Callable[[], str], *, as_json: bool) -> None:
    """Print a complete answer. Raises: Failure if it is an error."""
    if as_json:
        print_json(_as_fields(reply, _ms_since(begun)))
    elif reply.status == 202 and not _ran(reply):
        echo(reply.headers["x-amzn-requestid"])
    elif reply.status < 400:
        write_result(reply.body + b"\n")
        _tell_timing(reply, begun)
    if reply.status >= 400:
        _raise(reply, name, quiet=as_json, worker_url=worker_url)


def _tell_timing(answer: Reply | Answer, begun: float) -> None:
    """The times of the phases, as text."""
    if sys.stderr.isatty():
        say(_timing_line(answer, _ms_since(begun)))


def _ms_since(begun: float) -> float:
    return (time.perf_counter() - begun) * 1e3


def payload_of(data: str) -> bytes:
    """The value of -d: text, a file's content, or stdin. Raises: Failure."""
    if data == "-":
        return read_stdin(PAYLOAD_BYTES)
    return read_file(Path(data[1:]), PAYLOAD_BYTES) if data.startswith("@") else os.fsencode(data)


def _as_fields(reply: Reply, total_ms: float) -> dict[str, Any]:
    try:
        body = json.loads(reply.body)
    except ValueError:
        body = reply.body.decode(errors="replace")
    return {
        "status": reply.status,
        "request_id": reply.headers.get("x-amzn-requestid"),
        "cold": reply.headers.get("x-sockd-cold") == "1",
        "origin": reply.headers.get("x-sockd-origin"),
        "sandbox": reply.headers.get("x-sockd-sandbox"),
        "phases_ms": _phases(reply),
        "total_ms": round(total_ms, 3),
        "body": body,
    }


def _phases(reply: Reply | Answer) -> dict[str, float]:
    """`Server-Timing`, taken apart."""
    entries = reply.headers.get("server-timing", "").split(", ")
    pairs = (entry.split(";dur=") for entry in entries if ";dur=" in entry)
    return {name: float(duration) for name, duration in pairs}


def _timing_line(reply: Reply | Answer, total_ms: float) -> str:
    """The id is first: a narrow terminal would break it at the end of a line."""
    phases = ", ".join(f"{name} {duration:.2f}" for name, duration in _phases(reply).items())
    origin, request_id = (reply.headers.get(name, "?") for name in ("x-sockd-origin", "x-amzn-requestid"))
    return f"{request_id} {origin}, {total_ms:.2f} ms ({phases})"


def _ran(reply: Reply | Answer) -> bool:
    """Whether a sandbox made this answer."""
    return "x-sockd-sandbox" in reply.headers


def _raise(
    reply: Reply, name: str, *, quiet: bool = False, worker_url: Callable[[], str] = lambda: EXAMPLE_URL
) -> None:
    """Report a failed invocation.

    Args: quiet: stack and body are printed already; worker_url: returns where the worker's port is, for a hint.
    Raises: Failure."""
    try:
        error = json.loads(reply.body)
        kind, message = error["errorType"], error["errorMessage"]
    except (ValueError, TypeError, KeyError):
        if _ran(reply) and not quiet:
            write_result(reply.body + b"\n")
        if _ran(reply):
            has_no_such_route = reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
            raise Failure(
                f"the app answered with status {reply.status}",
                why="the event is sent as POST /" if has_no_such_route else "",
                fix=f"curl {worker_url()}/run/{name}/" if has_no_such_route else "",
            ) from None
        raise Failure(
            f"status {reply.status}, and not an error of a worker", why="check that this is a worker's address"
        ) from None
    if not quiet:
        say(_set_off("".join(error.get("stackTrace", ())).rstrip()) or f"request {error.get('requestId')}")
    option = "--init-timeout" if "(init_timeout_s)" in message else "--timeout"
    exit_code = exit_code_for(reply.status, name)
    if kind == NOT_JSON:
        raise Failure(
            "the event is not JSON", why=message, fix=f"sockd invoke {name} -d '{{\"key\": 1}}'", exit_code=USAGE
        )
    fixes = {NOT_FOUND: listing(message) or "sockd ls", TIMED_OUT: f"sockd config {name} {option} S"}
    if not _ran(reply):  # it waited in vain: for its function's other requests, or for memory
        fixes[THROTTLED] = f"sockd config {name} --concurrency N"
    special = {
        NOT_HTTP: f"curl {worker_url()}/run/{name}/" if kind == NOT_HTTP else "",
        OutOfMemory.error_type: f"sockd config {name} --memory MB",
        **dict.fromkeys(
            STORED_AGAIN, f"sockd deploy {name} --image REF  # the image that it has: what is missing is stored again"
        ),
    }
    fix = (
        special.get(kind)
        or fixes.get(exit_code)
        or _where_to_look(reply, name, kind, str(error.get("requestId") or ""))
    )
    raise Failure(f"{kind}: {message}", fix=fix, exit_code=exit_code)


def _where_to_look(reply: Reply, name: str, kind: str, request_id: str) -> str:
    """The command that shows more of a failed request: its output, if it ran."""
    if reply.status in _REFUSED or not request_id:
        return ""
    if _ran(reply) and not kind.startswith("Images."):  # of those, no handler ran that could have printed something
        return f"sockd logs {name} --request {request_id}"
    return f"sockd trace {request_id}" if reply.status >= 500 else ""


def _set_off(stack: str) -> str:
    """Frames and the first line of an exception group's members, with every other line indented: a file's name may hold lines
    that look like this program's own."""
    return "\n".join(
        line if not line or line.startswith(("  File ", "  +-", "    ")) else f"    {line}"
        for line in stack.split("\n")
    )
