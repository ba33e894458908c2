"""A service: a program that keeps running and serves a port, of its sandbox's own network or of the host's.

    program (any server)                     this, the sandbox's first process
      │ listens on its port                    → asked until it takes a connection, or a GET of a path is answered: READY
      │ (the daemon connects to the port)      ← INVOKE, once; no answer but the end of this process, with the program's status
      │◄─ SIGTERM                              ← SIGTERM of the daemon: it is to end
      │ leaves processes without a parent      → they are reaped

Owns the program. Its end is the end of the sandbox. Nothing here is between a client and the program.
"""

from __future__ import annotations

import _socket
import _thread  # `threading`, and `contextlib`, would take two milliseconds of each start
import errno
import os
import signal
import time

from sockd_zygote import protocol
from sockd_zygote.handlers import initscript_link
from sockd_zygote.handlers.handler import Handler
from sockd_zygote.handlers.programs.runtime_api import LOOPBACK, own_environment, own_ports
from sockd_zygote.messages import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FIRST_POLL_S, LAST_POLL_S = 0.001, 0.02
POLLED_SHARE = 1 / 20
"""The most by which a program is found late to be ready, as a share of the time that its start has taken."""
GIVE_UP_S = 0.5
"""Before the deadline, at most: so long it takes to say why it was missed. Of a short one, a tenth."""
STATUS_BYTES = 12
"""The length of `HTTP/1.1 200`."""
HEALTHY = range(200, 400)
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and no program expects."""
kept: list[object] = []
"""The program of an image, whose Popen would reap it if it were deleted."""
WATCHED = (signal.SIGCHLD, signal.SIGTERM)
LONGER = "if it only needs longer to start, raise init_timeout_s"
REFUSED = "was refused, as no process listens there"
OF_ANOTHER = "reached a process that is not of this service"


class Service(Handler):
    """A handler whose one request lasts as long as its program."""

    kind = protocol.APP

    def __init__(self, function: dict) -> None:
        """Start the program; returns when it is ready.

        Raises: errors.ReportedError: it cannot be run, or was not ready in time; SystemExit: it has ended."""
        service = function["service"]
        self._shares_ports = "port" in function
        """Whether its port is one of the host's, which the daemon has granted to this sandbox."""
        self._port: int = function.get("port") or service["port"]
        self._path: str = service["ready_path"]
        self._status = 0
        self._running = _thread.allocate_lock()
        """Held until the program has ended."""
        self._running.acquire()
        self._program = started(function, {"PORT": str(self._port)})
        # In the thread that is started now, too; the program, which was started before, has none blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        _thread.start_new_thread(self._watch, ())
        self._await_ready(service["init_timeout_s"])

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> NoReturn:
        """Serve. Raises: SystemExit, when the program has ended."""
        self._running.acquire()
        raise SystemExit(self._status)

    def _await_ready(self, within_s: float) -> None:
        begun = time.monotonic()
        until = begun + within_s - min(GIVE_UP_S, within_s / 10)
        while why := self._why_not_ready(max(until - time.monotonic(), FIRST_POLL_S)):
            if self._running.acquire(timeout=next_poll_s(time.monotonic() - begun)):
                raise self._end()
            if time.monotonic() >= until:
                asked = f"GET {self._path} on port {self._port}" if self._path else f"a connection to port {self._port}"
                message = f"the service was not ready after {time.monotonic() - begun:.1f} s: {asked} {why}. {self._advice(why)}"
                raise errors.ReportedError("Service.NotReady", message, [])

    def _end(self) -> BaseException:
        """Return the error for a program that has ended before it was ready."""
        if not self._shares_ports or is_free(self._port):
            return SystemExit(self._status)
        message = (
            f"the program has ended with status {self._status}, and another process of the host has taken port {self._port}, "
            "which this start was granted: another worker of the host may have granted it, too. The next start has another port"
        )
        return errors.ReportedError("Service.PortInUse", message, [])

    def _why_not_ready(self, timeout_s: float) -> str:
        """What came of a connection, if the program is not ready; empty: it is."""
        why = why_not_ready(self._port, self._path, timeout_s)
        if self._shares_ports and not why:
            from sockd_zygote.handlers.programs.own_listener import OwnListener

            # A process of the host may have taken the port: the daemon keeps only sandboxes from it.
            return "" if OwnListener(self._port).find() is not None else OF_ANOTHER
        return why

    def _advice(self, why: str) -> str:
        """What helps a program that was not ready."""
        ports = own_ports()
        if why == OF_ANOTHER:
            return "The next start has another port"
        if why != REFUSED:
            return f"Set service.ready_path to a path that it answers; {LONGER}"
        if self._port in ports:
            return f"The program listens on this port, but not at {LOOPBACK}. Have it listen there, or at 0.0.0.0"
        listens = f"on {', '.join(map(str, sorted(ports)))}" if ports else "on no port"
        if self._shares_ports:
            return f"The program listens {listens}. Have it listen on the port that the variable PORT names; {LONGER}"
        return f"The program listens {listens}. Set service.port to its port; {LONGER}"

    def _watch(self) -> None:
        """Reap every process that ends, and pass SIGTERM on, until the program has ended."""
        while not self._reaped():
            if signal.sigwait(WATCHED) == signal.SIGTERM:
                os.kill(self._program, signal.SIGTERM)  # it is not reaped yet, so the number is its own
        self._running.release()

    def _reaped(self) -> bool:
        """Reap what has ended; whether the program has."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return False
            if pid == self._program:
                code = os.waitstatus_to_exitcode(status)
                self._status = 128 - code if code < 0 else code
                return True


def next_poll_s(elapsed_s: float) -> float:
    """POLICY: how long to wait between two attempts to reach a program that has been starting for so long. An attempt takes some
    30 us of a processor."""
    return min(max(FIRST_POLL_S, elapsed_s * POLLED_SHARE), LAST_POLL_S)


def is_free(port: int) -> bool:
    """Whether the port could be bound. A connection that has ended there does not keep a server from it."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    finally:
        sock.close()
    return True


def started(function: dict, variables: dict[str, str]) -> int:
    """Start the program, and return its pid. Raises: errors.ReportedError: it cannot be run."""
    link, fds = initscript_link.inherited()
    if "image" in function:
        from sockd_zygote.handlers.programs import image_program

        environment = image_program.environment(function)
        program = image_program.start(function["image"], {**environment, **variables, **link}, fds)
        kept.append(program)
        return program.pid
    environment = {**own_environment(function), **variables, **link}
    command = function["service"]["command"]
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            try:
                os.set_inheritable(number, number in fds)
            except OSError:  # that of the listing
                pass
    try:
        # The directory is that of the code already. (`subprocess` takes several milliseconds to import.)
        return os.posix_spawnp(command[0], command, environment, setsigdef=DEFAULTED)
    except OSError as error:
        raise _not_run(command[0], environment.get("PATH", ""), function["code"], error) from None


def _not_run(name: str, path: str, code: str, error: OSError) -> errors.ReportedError:
    from sockd_zygote.handlers.programs import image_program

    file = image_program.find(name, path, code)
    where = f"in its PATH ({path})" if "/" not in name else "in its code"
    message = image_program.why_not_run(file, error) if file else f"{name} does not exist {where}"
    return errors.ReportedError(image_program.INVALID_ENTRYPOINT, message, [])


def why_not_ready(port: int, path: str, timeout_s: float) -> str:
    """What came of a connection, if the program is not ready; empty: it is. Args: path: asked for by GET; empty: by nothing."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect((LOOPBACK, port))
        if not path:
            return ""
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n".encode())
        line = b""
        while len(line) < STATUS_BYTES and (data := sock.recv(STATUS_BYTES - len(line))):
            line += data
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return "has no answer"
    except OSError as error:
        return f"failed: {error.strerror}"
    finally:
        sock.close()
    status = line[-3:]
    if not line.startswith(b"HTTP/1.") or not status.isdigit():
        return "has an answer that is not HTTP"
    return "" if int(status) in HEALTHY else f"has status {int(status)}, and not one from 200 to 399"
