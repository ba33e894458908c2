"""The port on both loopback addresses that connects a debugger with a waiting function.

Both connect to it, the function first; one that has a loopback of its own has a socket to the daemon instead. They exchange
the Debug Adapter Protocol, which can run any code as the function; the daemon copies it without parsing it.

    POLICY: who may debug? Every local process except those in sandboxes. Debuggers send no password, so the kernel's uid of the
    connection's other end decides.

Owns the listening socket and both connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Self

from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.network import loopback
from sockd.linux.network.socket_owners import owner
from sockd_zygote.handlers import debugging

HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_LAST_WORDS_S = 1.0
"""Time for the debugger to read the last output of a function that has ended."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DebugPort:
    """For one function and one debugger. `open`, `expect`, then `aclose`."""

    def __init__(self, may_debug: Callable[[int], bool], guard: PortGuard) -> None:
        self._may_debug = may_debug
        self._guard = guard
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._function: Connection | None = None
        self._debugger: asyncio.StreamWriter | None = None
        self._link: socket.socket | None = None
        self._linking: asyncio.Task[None] | None = None
        self._uid = -1
        self.number = 0
        self.on_function: Callable[[], None] = _nothing
        """Called when the function has connected: a debugger may connect now."""
        self.on_left: Callable[[], None] = _nothing
        """Called when the debugger has disconnected."""

    @classmethod
    async def open(cls, number: int, may_debug: Callable[[int], bool], guard: PortGuard) -> Self:
        """Args: number: of the port; 0: any that is free. may_debug: whether who has this uid may. guard: keeps sandboxes
        from binding it elsewhere. Raises: OSError: a loopback has it no more."""
        port = cls(may_debug, guard)
        sockets = loopback.bind(loopback.LOOPBACKS, number)
        try:
            for sock in sockets:
                port._servers.append(await asyncio.start_server(port._on_connection, sock=sock))
            number = sockets[0].getsockname()[1]
            guard.hold(number)
        except BaseException:
            port._stop()
            for sock in sockets:
                sock.close()
            raise
        port.number = number
        return port

    def _stop(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def expect(self, uid: int) -> None:
        """The function has this uid."""
        self._uid = uid

    def link(self) -> int:
        """A descriptor for a function that does not reach this port. `close_link` when it was sent. Raises: OSError."""
        ours, self._link = socket.socketpair()
        self._linking = asyncio.get_running_loop().create_task(self._await_function(ours))
        return self._link.fileno()

    def close_link(self) -> None:
        """The function has its end of the link, or never will. Safe to call twice."""
        if self._link is not None:
            self._link.close()

    async def aclose(self) -> None:
        """Close the port and both connections."""
        self._stop()
        self._guard.release(self.number)
        self.close_link()
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in (self._function[1] if self._function else None, self._debugger):
            if writer is not None:
                writer.close()

    async def _await_function(self, sock: socket.socket) -> None:
        """Over the link come a byte when the function's debugger is there, and then what it says."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self._function = reader, writer
        if await reader.read(len(debugging.CONNECTED)):
            self.on_function()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        uid = owner(theirs[:2], ours[:2]) if theirs else None
        if uid == self._uid and self._function is None:
            self._function = reader, writer
            self.on_function()
        elif uid is None or not self._may_debug(uid) or self._function is None or self._debugger is not None:
            writer.close()
        else:
            self._debugger = writer
            task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer, *self._function))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_function: asyncio.StreamReader,
        to_function: asyncio.StreamWriter,
    ) -> None:
        """Copy data in both directions until one connection ends; then close both."""
        first = await reader.read(_CHUNK_BYTES)
        if not first:  # somebody who only wanted to know whether the port is open
            writer.close()
            self._debugger = None
            return
        to_function.write(first)
        ways = [asyncio.ensure_future(pump(reader, to_function)), asyncio.ensure_future(pump(from_function, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_function.close()
            writer.close()
        self.on_left()


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until the end of either."""
    try:
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
    except ConnectionError:
        return


def _nothing() -> None:
    return None
