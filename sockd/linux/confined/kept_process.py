"""KeptProcess: a confined process that is started again when it ends.

Owns the task that waits for its end. Who needs the process says how one is started, and what surrounds it while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sockd.linux.confined.confined_process import ConfinedProcess

RESTART_S = 1.0
"""Between the end of a process and the start of the next."""
_log = logging.getLogger(__name__)

Running = Callable[[], AbstractAsyncContextManager[ConfinedProcess]]


class KeptProcess:
    """Start with the constructor, end with `aclose`."""

    def __init__(self, name: str, running: Running) -> None:
        """Args: name: for the log; running: starts a process (raises OSError), and ends what surrounds it after the block."""
        self._name = name
        self._running = running
        self._closing = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """End the process."""
        self._closing.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        closing = asyncio.get_running_loop().create_task(self._closing.wait())
        while not closing.done():
            try:
                async with self._running() as process:
                    await self._watch(process, closing)
            except OSError as error:
                _log.error("%s does not start: %s", self._name, error)
            await asyncio.wait([closing], timeout=RESTART_S)

    async def _watch(self, process: ConfinedProcess, closing: asyncio.Task[bool]) -> None:
        """Wait until it has ended, or end it."""
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([ended, closing], return_when=asyncio.FIRST_COMPLETED)
            if not closing.done():
                _log.error("%s ended (%s), and is started again", self._name, ended.result())
        finally:
            await process.close()
            await ended
