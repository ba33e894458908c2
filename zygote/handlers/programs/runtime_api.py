"""AWS's Runtime API (2018-06-01): a program of the function's own asks for events over HTTP, and posts what it made of them.

    program (bootstrap, awslambdaric, an image's)        this, the sandbox's first process
      │ GET  /2018-06-01/runtime/invocation/next           → READY; then the event of the next INVOKE
      │ POST /2018-06-01/runtime/invocation/<id>/response  → RESULT
      │ POST /2018-06-01/runtime/invocation/<id>/error     → FAILED
      │ POST /2018-06-01/runtime/init/error                → FAILED instead of READY

A program may end behind its answer, as Go's runtime client does after a panic. So the answer of an error waits a little for the
next GET or the program's end; and a request that no GET took is reported as UNTAKEN, for another sandbox to serve.

Owns the program, the port on loopback and the threads that serve it. The network is the host's, so anybody can reach the
port: whose connection it is, the kernel's table of sockets tells, and only those of this sandbox's uid, which no other
sandbox has, are answered. Imported for functions with `runtime = "provided"` alone, and by the Zygotes of images' programs: in an
image's root nothing of ours can be imported, nor of our interpreter's library (`program_imports`).
"""

from __future__ import annotations

import json
import os
import sys
import time

from sockd_zygote.handlers import initscript_link
from sockd_zygote.handlers.handler import Context, Handler, shared_context
from sockd_zygote.messages import errors

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import socket
    import subprocess
    from http.server import BaseHTTPRequestHandler
    from queue import SimpleQueue
    from typing import Any

PREFIX = "/2018-06-01/runtime/"
INVOCATION = PREFIX + "invocation/"
LOOPBACK = "127.0.0.1"
TABLE = "/proc/self/net/tcp"
LISTENING = "0A"
MAX_BODY_BYTES = 64 << 20
"""Over any limit of answers, which the daemon's settings say; this only keeps a length from being taken at its word."""

OF_ENVIRONMENT = """
import os, runpy, sys
sys.argv[1:] = [os.environ["_HANDLER"]]
runpy.run_module("awslambdaric", run_name="__main__", alter_sys=True)
"""
"""AWS's client with the handler that the environment names when it runs."""

ERROR_TYPE, ERROR_BODY = "lambda-runtime-function-error-type", "lambda-runtime-function-error-body"
"""Trailers of an answer in chunks whose making has failed in the middle; the second is an error's JSON in base64."""
TRAILER_BYTES = 64 << 10
TRAILERS = 100
READY, ANSWER, ERROR, EXIT = range(4)
SETTLE_S = 1.0
"""How long an error that a program has posted waits for the program's next GET or its end."""
SLOW_START_S = 2.0
"""The delay of a program that asks for nothing: then the log may say why."""


class Program(Handler):
    """A handler that is a process of its own."""

    def __init__(self, function: dict) -> None:
        """Start the program; returns when it asks for its first event.

        Raises: OSError; errors.ReportedError, with what it reports instead; SystemExit when it has ended."""
        import socket
        import threading
        from queue import SimpleQueue

        self._shared = shared_context(function)
        self._outcomes: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._events: SimpleQueue[tuple[dict[str, str], bytes]] = SimpleQueue()
        self._current = ""
        self._asked = False
        self._taken = False
        """Whether the program has the current event."""
        self._settled = threading.Event()
        """Set while it waits for an event, and when it has ended."""
        listener = socket.create_server((LOOPBACK, 0), backlog=16)
        self.port: int = listener.getsockname()[1]
        link, fds = initscript_link.inherited()
        runtime = {"AWS_LAMBDA_RUNTIME_API": f"{LOOPBACK}:{self.port}", **link}
        program = started(function, runtime, fds)
        threading.Thread(target=self._wait_for, args=(program,), daemon=True).start()
        # Imported while the program starts: it takes longer than all of this.
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        self._await_ready(is_image="image" in function)

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> bytes:
        """One event; as of a handler.

        Raises: errors.ReportedError, which the program reports; errors.NotTaken, SystemExit when it has ended."""
        context = Context(self._shared, request, deadline_ns)
        self._current = context.aws_request_id
        until_ms = int(time.time() * 1000) + context.get_remaining_time_in_millis()
        headers = {
            "Lambda-Runtime-Aws-Request-Id": self._current,
            "Lambda-Runtime-Deadline-Ms": str(until_ms),
        }
        if metadata is not None:
            context.tell(metadata)
            if metadata.get("client_context") is not None:
                headers["Lambda-Runtime-Client-Context"] = json.dumps(metadata["client_context"])
        headers["Lambda-Runtime-Invoked-Function-Arn"] = context.invoked_function_arn
        trace = os.environ.get("_X_AMZN_TRACE_ID")
        if trace:
            headers["Lambda-Runtime-Trace-Id"] = trace
        self._taken = False
        self._events.put((headers, event))
        try:
            return self._outcome()
        except errors.ReportedError:
            self._settled.wait(min(SETTLE_S, context.get_remaining_time_in_millis() / 2000))
            raise
        except SystemExit:
            if not self._taken:
                raise errors.NotTaken from None
            raise

    def _await_ready(self, *, is_image: bool) -> None:
        """Until the program asks for an event. The log says it of an image whose program is a web server instead: the deadline
        ends this process without a word."""
        from queue import Empty

        is_reported = not is_image
        while True:
            try:
                self._outcome(None if is_reported else SLOW_START_S)
                return
            except Empty:
                if ports := own_ports() - {self.port}:
                    is_reported = True
                    where = ", ".join(map(str, sorted(ports)))
                    print(
                        f"sockd waits for the program to ask the Runtime API. It listens on {where}: a web server needs app_port",
                        file=sys.stderr,
                        flush=True,
                    )

    def _outcome(self, timeout_s: float | None = None) -> bytes:
        """Raises: queue.Empty after a time-out; see `call`."""
        kind, value = self._outcomes.get(timeout=timeout_s)
        self._current = ""
        if kind == EXIT:
            raise SystemExit(value)
        if kind == ERROR:
            raise errors.ReportedError(*value)
        return value  # type: ignore[no-any-return]

    def _wait_for(self, program: subprocess.Popen[bytes]) -> None:
        status = program.wait()
        self.has_ended = True
        self._outcomes.put((EXIT, 128 - status if status < 0 else status))
        self._settled.set()

    # -- what the program asks for, each in a thread of the server's

    def _serve(self, listener: socket.socket) -> None:
        serve(self, listener)

    def next_event(self, peer: socket.socket) -> tuple[dict[str, str], bytes] | None:
        """Wait for an event; None: the client has gone, and the event is kept for the next GET."""
        if not self._asked:
            self._asked = True
            self._outcomes.put((READY, b""))
        self._settled.set()
        event = self._events.get()
        if is_gone(peer):
            self._events.put(event)
            return None
        self._taken = True
        self._settled.clear()
        return event

    def take(self, path: str, body: bytes, trailers: dict[str, str]) -> int:
        """What was posted to a path; the status of the answer. Args: trailers: what came behind its last chunk."""
        if path == PREFIX + "init/error" and not self._asked:
            self._asked = True
            self._outcomes.put((ERROR, metadata(body)))
            return 202
        identity, _, what = path.removeprefix(INVOCATION).partition("/")
        if not path.startswith(INVOCATION) or what not in ("response", "error"):
            return 404
        if not identity or identity != self._current:
            return 400
        self._current = ""
        if what == "error":
            self._outcomes.put((ERROR, metadata(body)))
        elif ERROR_TYPE in trailers:
            self._outcomes.put((ERROR, error_in_trailers(trailers)))
        else:
            self._outcomes.put((ANSWER, body))
        return 202


def started(function: dict, runtime: dict[str, str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """The program. Args: runtime: variables that only it is given. Raises: errors.ReportedError: it cannot be run."""
    import subprocess

    image = function.get("image")
    if image is not None:
        from sockd_zygote.handlers.programs import image_program

        return image_program.start(image, {**image_program.environment(function), **runtime}, fds)
    environment = {**own_environment(function), **runtime}
    program, *arguments = command(function, environment)
    try:
        return subprocess.Popen([program, *arguments], env=environment, pass_fds=fds)
    except OSError as error:
        from sockd_zygote.handlers.programs import image_program

        is_there = os.path.exists(program)
        message = image_program.why_not_run(program, error) if is_there else f"{program} does not exist"
        raise errors.ReportedError(image_program.INVALID_ENTRYPOINT, message, []) from None


def own_environment(function: dict) -> dict[str, str]:
    """Variables of a program that is in the function's code or packages."""
    paths = [function["code"], *function["paths"]]
    environment = dict(os.environ)
    if function["provided"] == "bootstrap":
        environment.pop("AWS_EXECUTION_ENV", None)  # as on AWS, where it names a runtime of AWS's
    return {**environment, "PYTHONPATH": ":".join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}


def command(function: dict, environment: dict[str, str]) -> list[str]:
    """What is run: the code's own bootstrap, or AWS's client with the handler, started by a wrapper if the function names one.

    A bootstrap looks for a wrapper itself, as on AWS. A wrapper may change _HANDLER before it runs its arguments."""
    if function["provided"] == "bootstrap":
        return [function["code"] + "/bootstrap"]
    wrapper = environment.get("AWS_LAMBDA_EXEC_WRAPPER")
    if wrapper:
        return [wrapper, sys.executable, "-c", OF_ENVIRONMENT]
    return [sys.executable, "-m", "awslambdaric", environment["_HANDLER"]]


def metadata(body: bytes) -> tuple[str, str, list[str]]:
    """The type, message and stack of an error that a program posts, whatever it posts."""
    try:
        error = json.loads(body)
    except (ValueError, RecursionError):
        error = None
    if not isinstance(error, dict):
        return "Runtime.UnknownReason", body.decode(errors="replace"), []
    stack = error.get("stackTrace")
    frames = [str(frame) for frame in stack] if isinstance(stack, list) else []
    return str(error.get("errorType") or "Runtime.UnknownReason"), str(error.get("errorMessage", "")), frames


def error_in_trailers(trailers: dict[str, str]) -> tuple[str, str, list[str]]:
    """Return the error as `encoded` does, for an answer that failed in the middle: the type of the trailer is the one that
    counts."""
    import base64

    try:
        body = base64.b64decode(trailers.get(ERROR_BODY, ""))
    except ValueError:
        body = b""
    _, message, stack = metadata(body)
    return trailers[ERROR_TYPE] or "Runtime.UnknownReason", message or "the answer failed in the middle", stack


def is_own(peer_port: int, port: int) -> bool:
    """Whether the other end of a connection to our port on loopback is a socket of our own uid's.

    The table shows uids of other user namespaces as the one that stands for all of them, which is never ours. A connection
    of its two ports exists once, so the line that is found is that of its other end. Java connects by an IPv6 socket, which is in
    the other table."""
    for table, loopback in ((TABLE, "0100007F"), (f"{TABLE}6", "0000000000000000FFFF00000100007F")):
        ends = f": {loopback}:{peer_port:04X} {loopback}:{port:04X} "
        try:
            with open(table) as lines:
                for line in lines:
                    if ends in line:
                        return int(line.split()[7]) == os.getuid()
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return False


def own_ports() -> set[int]:
    """Return the ports that sockets of our own uid listen on, on any address."""
    found = set()
    for table in (TABLE, f"{TABLE}6"):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split()
                    if fields[3] == LISTENING and int(fields[7]) == os.getuid():
                        found.add(int(fields[1].rpartition(":")[2], 16))
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return found


def is_gone(peer: socket.socket) -> bool:
    """Whether the other end of a connection has closed it."""
    import socket

    try:
        return peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def serve(program: Program, listener: socket.socket) -> None:
    """Answer the program's requests until the process ends."""
    from http.server import BaseHTTPRequestHandler
    from socketserver import TCPServer, ThreadingMixIn

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self.path != INVOCATION + "next":
                self._answer(404)
                return
            event = program.next_event(self.connection)
            if event is None:
                self.close_connection = True
                return
            self._answer(200, event[1], event[0])

        def do_POST(self) -> None:
            posted = read_body(self)
            if posted is None:
                self.close_connection = True
                self._answer(413)
                return
            self._answer(program.take(self.path, *posted))

        def _answer(self, status: int, body: bytes = b'{"status":"OK"}', headers: dict[str, str] | None = None) -> None:
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the output is the function's."""

    class Server(ThreadingMixIn, TCPServer):
        daemon_threads = True

        def verify_request(self, request: object, client_address: Any) -> bool:
            return is_own(client_address[1], program.port)

        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: a program may end, or hang up, in the middle of a request."""

    server = Server((LOOPBACK, 0), Requests, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


def read_body(request: BaseHTTPRequestHandler) -> tuple[bytes, dict[str, str]] | None:
    """The body of a request, also of one in chunks, and its trailers, with names in lower case; None when it is longer than
    anything that can be answered."""
    if "chunked" in request.headers.get("Transfer-Encoding", "").lower():
        pieces, total = [], 0
        while size := int(request.rfile.readline(100).split(b";")[0], 16):
            total += size
            if total > MAX_BODY_BYTES:
                return None
            pieces.append(request.rfile.read(size))
            request.rfile.readline(100)
        return b"".join(pieces), read_trailers(request)
    length = int(request.headers.get("Content-Length", "0"))
    return (request.rfile.read(length), {}) if 0 <= length <= MAX_BODY_BYTES else None


def read_trailers(request: BaseHTTPRequestHandler) -> dict[str, str]:
    """Raises: ValueError: there are more than a program has."""
    trailers: dict[str, str] = {}
    for _ in range(TRAILERS):
        line = request.rfile.readline(TRAILER_BYTES)
        if not line.strip():
            return trailers
        name, _, value = line.decode("latin-1").partition(":")
        trailers[name.strip().lower()] = value.strip()
    raise ValueError(f"more than {TRAILERS} trailers")
