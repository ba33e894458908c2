"""HostProxy: ports of the host's loopback for private networks, as the daemon knows it: listeners and a confined process.

Owns the sockets that listen in the router's namespace, and the process (`host_proxy_process`) that connects what they accept to
the ports of the same numbers on 127.0.0.1. Which functions reach a listener is decided by the router's rules.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.confined.kept_process import KeptProcess

MODULE = "sockd.isolation.networks.host_proxy_process"
MEMORY_BYTES, TMP_BYTES, PIDS = 96 << 20, 1 << 20, 4


class HostProxy:
    """Start with the constructor, end with `aclose`. A process that ends is started again."""

    def __init__(self, jail: Jail, uid: int, listeners: Mapping[int, socket.socket]) -> None:
        """Args: listeners: by their ports, owned from now on."""
        self._jail = jail
        self._uid = uid
        self._listeners = listeners
        self._kept = KeptProcess("the proxy to ports of the host", self._running)

    async def aclose(self) -> None:
        """End the process and close the listeners."""
        await self._kept.aclose()
        for each in self._listeners.values():
            each.close()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[ConfinedProcess]:
        fds = {port: each.fileno() for port, each in self._listeners.items()}
        yield await ConfinedProcess.start(
            self._jail,
            *("-m", MODULE, *(str(number) for port, fd in fds.items() for number in (fd, port))),
            uid=self._uid,
            memory_bytes=MEMORY_BYTES,
            tmp_bytes=TMP_BYTES,
            pids=PIDS,
            network="host",
            keep=tuple(fds.values()),
        )
