"""The holder of a FUSE connection: a process that has its descriptors of /dev/fuse, so that the daemon has none.

A connection lives as long as one of them, and the daemon's threads read from the connection: to mount an image is to read it.
Such a read waits for its answer even if its process is killed. Had the daemon the descriptors, they would be open until the
read's thread had ended, and the thread would wait until they were closed: a killed daemon would never be gone. The holder reads
nothing. It dies with the daemon, as the agents do, and then the kernel ends the connection and every read.

Owns the process and its socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sockd.linux import descriptor_passing
from sockd.linux.processes.own_module import start_module
from sockd.linux.readiness import readable

MODULE = "sockd.images.agent_keeper.holding_process"
ANSWER_S = 10.0
"""The process may wait for a processor, and at first for its interpreter's start."""


class HolderGone(OSError):
    """The process has ended, and the connection may end with the next agent."""


class DeviceHolder:
    """`start`, `lend`, `aclose`."""

    def __init__(self, process: asyncio.subprocess.Process, ours: socket.socket, count: int) -> None:
        self._process = process
        self._ours = ours
        self._count = count

    @classmethod
    async def start(cls, devices: Sequence[int]) -> DeviceHolder:
        """Have copies of descriptors held. Call it in the main thread, with which the process ends. Raises: OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                arguments = map(str, (theirs.fileno(), os.getpid(), *devices))
                process = await start_module(MODULE, *arguments, keep=(theirs.fileno(), *devices))
        except BaseException:
            ours.close()
            raise
        return cls(process, ours, len(devices))

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        try:
            return not self._ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[list[int]]:
        """The descriptors, until the block ends. Takes no thread: all may wait for reads. For one caller at a time.

        Raises: HolderGone; also without an answer in ANSWER_S, as one that came later would keep descriptors in our socket."""
        try:
            self._ours.send(b"\n")
            async with asyncio.timeout(ANSWER_S):
                await readable(self._ours.fileno())
            data, devices = descriptor_passing.receive(self._ours, 1, self._count)
        except TimeoutError:
            raise HolderGone(f"the holder of the FUSE connection has not answered for {ANSWER_S:g} s") from None
        except ConnectionError:
            raise HolderGone("the holder of the FUSE connection has ended") from None
        if not data:
            raise HolderGone("the holder of the FUSE connection has ended")
        try:
            yield devices
        finally:
            for device in devices:
                os.close(device)

    async def aclose(self) -> None:
        """End the process. Once."""
        self._ours.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
