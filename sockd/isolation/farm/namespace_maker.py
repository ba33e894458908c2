"""The daemon's handle of the process that makes network namespaces for walled Zygotes (`namespace_process`).

Owns the process and the wire to it. It is started when the first namespace is needed, and again when it has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket

from sockd.isolation.farm.control import ControlWire, close_all
from sockd.linux.processes.own_module import start_module

DEADLINE_S = 10.0


class NamespaceMaker:
    """`make`, until `aclose`."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._wire: ControlWire | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def make(self, zygote: int, count: int) -> list[int]:
        """New network namespaces with nothing but a loopback, owned by a Zygote's user namespace; descriptors, the caller's.

        Args: zygote: its pidfd. Raises: OSError; ZygoteGone: the process ended; ZygoteRefused: the kernel refuses it."""
        async with self._starting:
            if self._wire is None or self._wire.closed:
                await self._start()
        assert self._wire is not None
        answer = await self._wire.request("make", (zygote,), deadline_s=DEADLINE_S, count=count)
        if len(answer.fds) != count:
            close_all(answer.fds)
            raise OSError(f"{len(answer.fds)} network namespaces instead of {count}")
        return answer.fds

    async def aclose(self) -> None:
        """End the process; namespaces live on with their descriptors."""
        self._closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        await self._reap()

    async def _start(self) -> None:
        if self._closed:
            raise OSError("no network namespaces are made any more")
        await self._reap()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            fd = theirs.fileno()
            self._process = await start_module("sockd.isolation.farm.namespace_process", str(fd), keep=(fd,))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._wire = ControlWire(ours, lambda: None)

    async def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


class ZygoteNamespaces:
    """The namespaces of one Zygote, as a pool of endpoints asks for them."""

    def __init__(self, maker: NamespaceMaker, pidfd: int) -> None:
        """Args: pidfd: the Zygote's, copied."""
        self._maker = maker
        self._pidfd = os.dup(pidfd)

    async def make(self, count: int) -> list[int]:
        """As `NamespaceMaker.make`."""
        return await self._maker.make(self._pidfd, count)

    def close(self) -> None:
        """Safe to call twice."""
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)
