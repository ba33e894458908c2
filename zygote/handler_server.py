"""The loop of a handler sandbox: wait for a function, load it, answer its requests one by one until the channel closes.

Runs after confinement, beside user code and with no more rights than it. What it says is therefore a claim: the daemon
checks frame types, lengths and request numbers, and destroys a sandbox whose channel does not add up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from zygote import confinement, entry, hygiene, protocol
from zygote.import_timer import ImportTimer
from zygote.protocol import FAILED, HEADER, INIT, INVOCATION, INVOKE, MODULES, PRIMED, READY, RESULT, TIMES

MAX_REPORTED_MODULES = 4000
MAX_FRAME_BYTES = 1 << 30
"""The daemon limits payloads; this only stops a corrupted header."""


def serve(channel_fd: int, warm: bool) -> int:
    """Run this sandbox to its end; returns the exit status.

    Args:
        channel_fd: our end of the channel.
        warm: touch what a first request would touch, and say PRIMED, before waiting (a spare)."""
    hygiene.after_fork()
    channel = socket.socket(fileno=channel_fd)
    timer = ImportTimer()
    if warm:
        warm_up()
        send(channel, PRIMED, 0)
    frame = receive(channel)
    if frame is None:
        return 0
    kind, number, body = frame
    if kind != INIT:
        raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} before INIT")
    function = json.loads(body)
    timer.start()
    handler = initialize(channel, number, function)
    if handler is None:
        return 1
    answer_requests(channel, handler, function["max_answer_bytes"], timer)
    return 0


def warm_up() -> None:
    """Take the copy-on-write faults of a first request ahead of it: the same code, on an empty event."""
    entry.encode_answer(entry.parse_event(b'{"warm": [1, 2.5, "up"]}')).encode()
    entry.Context({"name": "", "version": "", "memory_mb": 0}, "", 0).get_remaining_time_in_millis()


def initialize(channel: socket.socket, number: int, function: dict) -> entry.Handler | None:
    """Become the function in `function` (INIT's JSON): environment, paths, limits, handler. Answers READY or FAILED."""
    started = time.monotonic_ns()
    try:
        confinement.limit_open_files(function["open_files"])
        os.chdir(function["code"])
        set_environment(function["env"])
        extend_path(function)
        handler = entry.Handler(function)
    except SystemExit:
        raise
    except BaseException as error:  # KeyboardInterrupt, too: only exiting is no failure
        send(channel, FAILED, number, TIMES.pack(started, time.monotonic_ns()), entry.describe(error))
        return None
    send(channel, READY, number, TIMES.pack(started, time.monotonic_ns()))
    return handler


def set_environment(env: dict[str, str]) -> None:
    """The function's variables over those of every function; its Zygote's own scratch directory is not among them."""
    environ = os.environ
    if "TMPDIR" in environ:
        del environ["TMPDIR"]
        environ["HOME"] = "/tmp"
    environ.update(env)
    if "TZ" in env:
        time.tzset()


def extend_path(function: dict) -> None:
    """sys.path as the function sees it: its code, its packages, the standard library; then the packages' .pth files."""
    packages = function["paths"]
    standard = [path for path in sys.path if not path.startswith("/packages/")]
    sys.path[:] = [function["code"], *packages, *standard]
    if function["pth"]:
        import site

        known = set(sys.path)
        for directory in function["pth"]:
            site.addsitedir(directory, known)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # the Zygote's own scratch is not in this root


def answer_requests(channel: socket.socket, handler: entry.Handler, max_bytes: int, timer: ImportTimer) -> None:
    """INVOKE after INVOKE until the daemon closes the channel. What the first one imported is told once, after its answer."""
    first = True
    while (frame := receive(channel)) is not None:
        kind, number, body = frame
        if kind != INVOKE:
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} instead of INVOKE")
        answer(channel, handler, number, body, max_bytes)
        if first:
            first = False
            timer.stop()
            send(channel, MODULES, number, json.dumps(imported(timer.seconds)).encode())


def answer(channel: socket.socket, handler: entry.Handler, number: int, body: bytes, max_bytes: int) -> None:
    """One request: call the handler, flush what it printed, send RESULT or FAILED."""
    request, timeout_ns = INVOCATION.unpack_from(body)
    started = time.monotonic_ns()
    kind = RESULT
    try:
        result = handler.call(body[INVOCATION.size :], uuid_text(request), started + timeout_ns)
        if len(result) > max_bytes:
            kind, result = FAILED, too_large(max_bytes)
    except SystemExit:
        raise
    except BaseException as error:  # asyncio.CancelledError, too: only exiting is no failure
        kind, result = FAILED, entry.describe(error)
    ended = time.monotonic_ns()
    flush()
    send(channel, kind, number, TIMES.pack(started, ended), result)


def too_large(max_bytes: int) -> bytes:
    message = f"Response payload size exceeded maximum allowed payload size ({max_bytes} bytes)."
    answer = {"errorMessage": message, "errorType": "Function.ResponseSizeTooLarge", "stackTrace": []}
    return json.dumps(answer).encode()


def uuid_text(raw: bytes) -> str:
    """str(uuid.UUID(bytes=raw)), without importing uuid."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def flush() -> None:
    """Push out what the handler printed. It may have closed or replaced the streams: that is its own affair."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def imported(seconds: dict[str, float]) -> list[tuple[str, str, float]]:
    """(package directory, module, own seconds) of what was imported from /packages, in the order the imports began."""
    found = []
    for name, spent in list(seconds.items())[:MAX_REPORTED_MODULES]:  # not sys.modules: looking copies its pages
        try:
            origin = sys.modules[name].__spec__.origin  # type: ignore[union-attr]
        except Exception:  # it is gone, or a package put something of its own in its place
            continue
        if isinstance(origin, str) and origin.startswith("/packages/"):
            found.append((origin.split("/", 3)[2], name, spent))
    return found


def receive(channel: socket.socket) -> tuple[int, int, bytes] | None:
    """The next frame, or None when the daemon has closed the channel."""
    header = receive_exactly(channel, HEADER.size)
    if header is None:
        return None
    kind, number, length = protocol.decode_header(header, max_body_bytes=MAX_FRAME_BYTES)
    body = receive_exactly(channel, length)
    return None if body is None else (kind, number, body)


def receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    data = channel.recv(count) if count else b""
    if len(data) == count:
        return data
    parts = [data]
    missing = count - len(data)
    while data and missing:
        data = channel.recv(min(missing, 1 << 20))
        parts.append(data)
        missing -= len(data)
    return b"".join(parts) if not missing else None


def send(channel: socket.socket, kind: int, number: int, *parts: bytes) -> None:
    channel.sendall(protocol.encode_frame(kind, number, *parts))
