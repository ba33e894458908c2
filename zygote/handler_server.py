"""The loop of a handler sandbox: wait for a function, load it, answer its requests one by one until the channel closes.

Runs after confinement, beside user code and with no more rights than it. What it says is therefore a claim: the daemon
checks frame types, lengths and request numbers, and destroys a sandbox whose channel does not add up.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
import time

from zygote import confinement, entry, initscript_link, protocol, storage_finder
from zygote.import_timer import ImportTimer
from zygote.protocol import FAILED, INIT, INVOCATION, INVOKE, MODULES, READY, RESULT, TIMES

MAX_REPORTED_MODULES = 4000
MAX_FRAME_BYTES = 1 << 30
"""The daemon limits payloads; this only stops a corrupted header."""
READ_BYTES = 1 << 16
"""Under malloc's mmap threshold: a larger buffer would be mapped and unmapped for each request."""
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)
"""Room for more descriptors than there may be, so that they are seen; the kernel closes what does not fit in."""


def serve(channel: Channel) -> int:
    """Run this sandbox to its end; returns the exit status."""
    timer = ImportTimer()
    link = channel.receive_first()
    frame = channel.receive()
    if frame is None:
        return 0
    kind, number, body = frame
    if kind != INIT:
        raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} before INIT")
    function = json.loads(body)
    timer.start()
    handler = initialize(channel, number, function, link)
    if handler is None:
        return 1
    answer_requests(channel, handler, function["max_answer_bytes"], timer, link)
    return 0


def initialize(channel: Channel, number: int, function: dict, link: int | None = None) -> entry.Handler | None:
    """Become the function in `function` (INIT's JSON): environment, paths, limits, handler. Answers READY or FAILED.

    Args: link: the function's end of the link to its initscript, if it has one."""
    started = time.monotonic_ns()
    try:
        confinement.limit_open_files(function["open_files"])
        os.chdir(function["code"])
        set_environment(function["env"])
        if link is not None:
            initscript_link.offer(link)
        extend_path(function)
        if function.get("storage") == "sockd":
            storage_finder.StorageFinder(storage_finder.DIRECTORY).install()
        handler = entry.Handler(function)
    except SystemExit:
        raise
    except BaseException as error:  # KeyboardInterrupt, too: only exiting is no failure
        channel.send(FAILED, number, TIMES.pack(started, time.monotonic_ns()), entry.describe(error))
        return None
    channel.send(READY, number, TIMES.pack(started, time.monotonic_ns()))
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
    standard = [path for path in sys.path if not path.startswith(("/packages/", function["code"]))]
    sys.path[:] = [function["code"], *packages, *standard]
    if function["pth"]:
        import site

        known = set(sys.path)
        for directory in function["pth"]:
            site.addsitedir(directory, known)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # the Zygote's own scratch is not in this root


def answer_requests(
    channel: Channel, handler: entry.Handler, max_bytes: int, timer: ImportTimer, link: int | None = None
) -> None:
    """INVOKE after INVOKE until the daemon closes the channel. What the first one imported is told once, in one write with
    its answer: told later, a sandbox that is evicted at once would never tell. Then the initscript's work is done."""
    first = True
    while (frame := channel.receive()) is not None:
        kind, number, body = frame
        if kind != INVOKE:
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} instead of INVOKE")
        reply = answer(handler, number, body, max_bytes)
        if first:
            first = False
            timer.stop()
            modules = json.dumps(imported(timer.seconds)).encode()
            reply = protocol.encode_frame(MODULES, number, modules) + reply
        channel.send_frames(reply)
        if link is not None:
            initscript_link.withdraw(link)
            link = None


def answer(handler: entry.Handler, number: int, body: bytes, max_bytes: int) -> bytes:
    """One request: call the handler, flush what it printed; RESULT or FAILED, encoded."""
    request, timeout_ns = INVOCATION.unpack_from(body)
    started = time.monotonic_ns()
    kind = RESULT
    try:
        result = handler.call(body[INVOCATION.size :], request, started + timeout_ns)
        if len(result) > max_bytes:
            kind, result = FAILED, too_large(max_bytes)
    except SystemExit:
        raise
    except BaseException as error:  # asyncio.CancelledError, too: only exiting is no failure
        kind, result = FAILED, entry.describe(error)
    ended = time.monotonic_ns()
    flush()
    return protocol.encode_frame(kind, number, TIMES.pack(started, ended), result)


def too_large(max_bytes: int) -> bytes:
    message = f"Response payload size exceeded maximum allowed payload size ({max_bytes} bytes)."
    answer = {"errorMessage": message, "errorType": "Function.ResponseSizeTooLarge", "stackTrace": []}
    return json.dumps(answer).encode()


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


class Channel:
    """Our end of the channel: blocking, one frame at a time."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._decoder = protocol.FrameDecoder(MAX_FRAME_BYTES)

    def receive_first(self) -> int | None:
        """Wait for the first bytes; the descriptor that came with them, if one did. `receive` gives their frame.

        Raises: ProtocolError for more than one descriptor; OSError."""
        rights = array.array("i")
        data, ancillary, _, _ = self._socket.recvmsg(READ_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                rights.frombytes(payload[: len(payload) // 4 * 4])
        self._decoder.feed(data)
        return initscript_link.only_one(rights)

    def receive(self) -> tuple[int, int, bytes] | None:
        """The next frame, or None when the daemon has closed the channel. Raises: ProtocolError, OSError."""
        decoder = self._decoder
        while (frame := decoder.next_frame()) is None:
            data = self._socket.recv(READ_BYTES)
            if not data:
                return None
            decoder.feed(data)
        return frame

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        """One frame, whole. Raises: OSError."""
        self.send_frames(protocol.encode_frame(kind, number, *parts))

    def send_frames(self, frames: bytes) -> None:
        """Frames that are encoded already. Raises: OSError."""
        self._socket.sendall(frames)

    def close(self) -> None:
        self._socket.close()
