"""A worker's own cache node: a confined process that is started again when it ends.

Owns the listening socket, which each process gets, and the process. The socket outlives it, so that the node has one address as
long as the daemon lives; with the daemon, both end.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sockd.images.agent_keeper.agent_link import OPEN_FILES
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.confined.kept_process import KeptProcess

MODULE = "sockd.images.caches.listening_node"
OVERHEAD_BYTES = 128 << 20
"""Its cgroup has so much more than its stripes may take: the interpreter, connections and the kernel's buffers of these."""
TMP_BYTES, PIDS = 1 << 20, 16


class CacheNode:
    """Start with the constructor, end with `aclose`."""

    def __init__(self, jail: Jail, uid: int, listening: socket.socket, *, memory_bytes: int, token: str) -> None:
        """Args: listening: bound, owned from now on; memory_bytes: of stripes; token: what each request must have."""
        self._jail = jail
        self._uid = uid
        self._listening = listening
        self._memory_bytes = memory_bytes
        self._setup = json.dumps({"memory_bytes": memory_bytes, "token": token}).encode()
        self._kept = KeptProcess("the cache node", self._running)

    async def aclose(self) -> None:
        """End the process. Clients that connect from now on are refused."""
        await self._kept.aclose()
        self._listening.close()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[ConfinedProcess]:
        process, ours = await ConfinedProcess.start_connected(
            self._jail,
            MODULE,
            socket.SOCK_SEQPACKET,
            uid=self._uid,
            memory_bytes=self._memory_bytes + OVERHEAD_BYTES,
            tmp_bytes=TMP_BYTES,
            pids=PIDS,
            network="host",
            limits={"RLIMIT_NOFILE": 2 * OPEN_FILES},
        )
        with ours:
            socket.send_fds(ours, [self._setup], [self._listening.fileno()])
            yield process
