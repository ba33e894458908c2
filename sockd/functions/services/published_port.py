"""A port of the host that leads to a service: any protocol over TCP, passed on byte by byte.

    client ── 127.0.0.1:PORT of the host ── this ── a connection to the program, inside its network

The port is on the host's loopback addresses, or on those that the worker's configuration allows, and no sandbox can bind it
(`sockd.linux.bpf.port_guard`). A connection starts the program if it does not run, and waits for it.

Owns the listening sockets, and the connections of clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Self

from sockd.base.errors import SockdError
from sockd.functions.code.service_config import ServiceConfig
from sockd.functions.services.byte_streams import pass_on
from sockd.functions.services.instance import Instance
from sockd.functions.services.parts import ServiceParts
from sockd.functions.services.program_connection import ProgramConnection
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.network import loopback

BACKLOG = 1024
PAUSE_S = 1.0
"""How long nothing is accepted when the process has no descriptor left."""

Connecting = Callable[[], AbstractAsyncContextManager[tuple[Instance, ProgramConnection]]]
"""Makes a connection to the program (`Service.connected`)."""

_log = logging.getLogger(__name__)


class PublishedPort:
    """Made by `open`; `close` ends it with all its connections, once, and `closed` waits for that."""

    def __init__(self, settings: ServiceConfig, guard: PortGuard, connecting: Connecting) -> None:
        self.number = settings.publish
        self.addresses = settings.publish_on
        self._guard = guard
        self._connecting = connecting
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def open(cls, settings: ServiceConfig, parts: ServiceParts, connecting: Connecting) -> Self:
        """Listen from now on, where the settings say.

        Raises: BadFunctionConfig: not at this address; OSError, with a note that names the address: another process has the
        port, or the host has no such address."""
        port = cls(settings, parts.guard, connecting)
        sockets = loopback.bind(settings.addresses(parts.publish_on), settings.publish)
        try:
            for sock in sockets:
                sock.setblocking(False)
                sock.listen(BACKLOG)
            parts.guard.hold(port.number)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        for sock in sockets:
            # Closed when its task has ended, whether that has begun or not: by then the loop does not watch it any more.
            port._run(port._accept(sock)).add_done_callback(partial(_close, sock))
        return port

    def close(self) -> None:
        """Accept nothing any more, and cut the connections."""
        self._guard.release(self.number)
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Wait until all sockets are closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, sock: socket.socket) -> None:
        """Accept until it is cancelled."""
        while True:
            try:
                client, _ = await self._loop.sock_accept(sock)
            except OSError as error:
                _log.warning("port %d of a service accepts nothing for a moment: %s", self.number, error.strerror)
                await asyncio.sleep(PAUSE_S)
            else:
                self._run(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        """One client, until the program or the client ends the connection."""
        try:
            reader, writer = await asyncio.open_connection(sock=client)
        except BaseException:
            client.close()
            raise
        try:
            async with self._connecting() as (_, program):
                await pass_on(reader, writer, program)
            writer.close()
        except SockdError as error:
            _log.info("a connection to port %d was refused: %s", self.number, error.message)
        finally:
            if not writer.is_closing():
                writer.transport.abort()


def _close(sock: socket.socket, accepting: asyncio.Task[None]) -> None:
    sock.close()
