"""The engine process: `python -m sockd_initscripts <control fd> <fd of the wire of starts> <limits as JSON>`.

Owns: the loop, both wires, and the fds that come over them until somebody else does. It needs /proc/self/fd
and the network, no file and no privilege. It says `ready` when nothing is left to import, serves until the wire ends, and
dies with its parent. Raises for a broken wire: the daemon starts another engine.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import ssl
import sys
import threading
from collections import deque

import uvloop

from sockd.linux.event_loop import EventLoop
from sockd_initscripts import wire
from sockd_initscripts.engine.engine import Definition, Engine, set_switch_interval
from sockd_initscripts.engine.modules import WASMTIME_VERSION
from sockd_initscripts.engine.run import RunRequest
from sockd_initscripts.errors import WireError
from sockd_initscripts.limits import EngineLimits, parse_limits
from sockd_initscripts.report import RunReport
from sockd_initscripts.rpc import preload

SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
AUTHORITIES_LIMIT_BYTES = 1024 * 1024
"""The most bytes of a function's certificates: four times as many as a system has."""
_DATAGRAMS_A_TURN = 16
_PR_SET_PDEATHSIG = 1


class Server:
    """The wires' end: carries out what the daemon says, and tells it what comes of it."""

    def __init__(
        self, sock: socket.socket, starts: socket.socket, engine_limits: EngineLimits, tls: ssl.SSLContext
    ) -> None:
        self._sock = sock
        self._starts = starts
        self._thread = threading.local()
        self._loop = asyncio.get_running_loop()
        self._scratch = bytearray(wire.MAX_DATAGRAM)
        self._waiting: deque[bytes] = deque()
        """What the socket has no room for; at most three a run, and runs are bounded by the daemon's starts."""
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._engine = Engine(engine_limits, on_abort=self._tell_abort, starter=self, tls=tls)

    async def serve(self) -> None:
        """Until the wire ends. Raises WireError."""
        async with self._engine:
            self._tell(wire.encode(wire.Ready(wasmtime=WASMTIME_VERSION)))
            self._loop.add_reader(self._sock.fileno(), self._read)
            try:
                await self._end
            finally:
                self._loop.remove_reader(self._sock.fileno())
                self._loop.remove_writer(self._sock.fileno())
                self._starts.shutdown(socket.SHUT_RDWR)  # threads that wait there see the end

    # -- Starter

    def next_start(self) -> RunRequest | None:
        """See engine.Starter. The kernel wakes one of the threads that wait."""
        here = self._thread
        if not hasattr(here, "scratch"):
            here.scratch = bytearray(wire.MAX_DATAGRAM)
        fds: list[int] = []
        try:
            data, fds = wire.receive(self._starts, here.scratch, 0)
            if not data and not fds:
                return None
            message, payload = wire.decode_start(data, len(fds))
        except WireError:
            wire.close_all(fds)
            raise
        return RunRequest(
            id=message.run,
            function=message.function,
            input=fds[1] if len(fds) > 1 else payload,
            app=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fds[0]),  # which need not be asked for, then
            arrived_ns=message.arrived_ns,
            request=message.request,
            known=message.known,
        )

    def broke(self, error: Exception) -> None:
        """See engine.Starter."""
        self._loop.call_soon_threadsafe(self._finish, error)

    def catch_up(self) -> None:
        """See engine.Starter."""
        while not self._end.done() and self._read_one():
            pass

    def guest_ended(self, run: int) -> None:
        """See engine.Starter."""
        self._tell(wire.encode(wire.Ended(run=run)))

    def run_done(self, done: asyncio.Future[RunReport]) -> None:
        """See engine.Starter."""
        self._tell(wire.encode_done(done.result()))

    # --

    def _read(self) -> None:
        for _ in range(_DATAGRAMS_A_TURN):
            if not self._read_one():
                return

    def _read_one(self) -> bool:
        """Whether there was something on the control wire."""
        fds: list[int] = []
        try:
            data, fds = wire.receive(self._sock, self._scratch)
            if not data and not fds:
                self._finish(None)
                return False
            message, _ = wire.decode_to_engine(data, len(fds))
        except BlockingIOError:
            return False
        except (OSError, WireError) as error:
            wire.close_all(fds)
            self._finish(error)
            return False
        self._carry_out(message, fds)
        return True

    def _carry_out(self, message: wire.ToEngine, fds: list[int]) -> None:
        match message:
            case wire.Define():
                self._define(message, fds)
            case wire.Forget():
                self._engine.forget(message.id)
            case wire.Cancel():
                self._engine.cancel(message.run)

    def _define(self, message: wire.Define, fds: list[int]) -> None:
        values = {name: getattr(message, name) for name in ("id", "name", "env", "budget", "static_args")}
        authorities = _content(fds.pop()) if len(fds) > 1 else None
        try:
            self._engine.define(Definition(module=fds[0] if fds else None, authorities=authorities, **values))
        except ValueError as error:  # its runs say that it is not defined
            print(f"initscript of {message.name!r}: {str(error)!a}", file=sys.stderr)

    def _tell_abort(self, run: int, status: int, message: str) -> None:
        self._tell(wire.encode(wire.Abort(run=run, status=status, message=message)))

    def _tell(self, data: bytes) -> None:
        self._waiting.append(data)
        if len(self._waiting) == 1:
            self._write()

    def _write(self) -> None:
        while self._waiting:
            try:
                wire.send(self._sock, self._waiting[0])
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._write)
                return
            except OSError:  # the daemon is gone; the reader notices, too
                self._waiting.clear()
                break
            self._waiting.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _finish(self, error: Exception | None) -> None:
        if self._end.done():
            return
        self._loop.remove_reader(self._sock.fileno())
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)


def _content(fd: int) -> bytes:
    """The beginning of a file, from its start; the fd is closed. What cannot be read is empty."""
    try:
        return os.pread(fd, AUTHORITIES_LIMIT_BYTES, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent's thread ends (prctl(2)); at once, if it has ended already."""
    parent = os.getppid()
    # SAFETY: prctl takes longs; no pointer is passed.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl: PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


async def serve(sock: socket.socket, starts: socket.socket, engine_limits: EngineLimits) -> None:
    """Serve the wires until the control wire ends, once nothing is left to load."""
    server = Server(sock, starts, engine_limits, await preload())
    # What is here now stays: a collection need not look at it again.
    gc.collect()
    gc.freeze()
    await server.serve()


def main(arguments: list[str]) -> int:
    """Run the engine; returns the exit status."""
    die_with_parent()
    fd, starts_fd, text = arguments
    sock = socket.socket(fileno=int(fd))
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    engine_limits = parse_limits(text)
    set_switch_interval()
    starts = socket.socket(fileno=int(starts_fd))  # blocks: threads wait there
    uvloop.run(serve(sock, starts, engine_limits), debug=engine_limits.debug, loop_factory=EventLoop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
