"""HostProxy: ports of the host's loopback for private networks, as the daemon knows it: listeners and a confined process.

Owns the sockets that listen in the router's namespace, and the process (`host_proxy_process`) that connects what they accept to
the ports of the same numbers on 127.0.0.1. Which functions reach a listener is decided by the router's rules.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping

from sockd.confined.confined_process import ConfinedProcess, Ground

MODULE = "sockd.networks.host_proxy_process"
MEMORY_BYTES, TMP_BYTES, PIDS = 96 << 20, 1 << 20, 4
RESTART_S = 1.0
_log = logging.getLogger(__name__)


class HostProxy:
    """Start with the constructor, end with `aclose`. A process that ends is started again."""

    def __init__(self, ground: Ground, uid: int, listeners: Mapping[int, socket.socket]) -> None:
        """Args: listeners: by their ports, owned from now on."""
        self._ground = ground
        self._uid = uid
        self._listeners = listeners
        self._closing = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """End the process and close the listeners."""
        self._closing.set()
        await asyncio.wait([self._running])
        for each in self._listeners.values():
            each.close()

    async def _run(self) -> None:
        while not self._closing.is_set():
            try:
                await self._run_once()
            except OSError as error:
                _log.error("the proxy to ports of the host does not start: %s", error)
            await _wait(self._closing, RESTART_S)

    async def _run_once(self) -> None:
        fds = {port: each.fileno() for port, each in self._listeners.items()}
        process = await ConfinedProcess.start(
            self._ground,
            *("-m", MODULE, *(str(number) for port, fd in fds.items() for number in (fd, port))),
            uid=self._uid,
            memory_bytes=MEMORY_BYTES,
            tmp_bytes=TMP_BYTES,
            pids=PIDS,
            network="host",
            keep=tuple(fds.values()),
        )
        ended = asyncio.create_task(process.wait())
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([ended, closing], return_when=asyncio.FIRST_COMPLETED)
            if not self._closing.is_set():
                _log.error("the proxy to ports of the host ended (%s), and is started again", await ended)
        finally:
            closing.cancel()
            await process.close()
            await ended


async def _wait(event: asyncio.Event, deadline_s: float) -> None:
    """Wait for an event, or until the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            await event.wait()
    except TimeoutError:
        return
