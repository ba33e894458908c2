"""Startup data of images that start: decrypted while they start, announced to the agent, and released when they have.

Owns the room of startup data, and the timers and tasks of the starts under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from sockd.base.blocking import in_thread
from sockd.base.errors import Tampered
from sockd.images.agent import agent_wire as wire
from sockd.images.agent_keeper.agent_keeper import OpenedImage
from sockd.images.profiles.profile import OpenProfile
from sockd.images.profiles.startup_memory import StartupMemory
from sockd.images.profiles.startup_room import NoStartupRoom, StartupRoom

START_S = 60.0
"""How long startup data is kept after an image was opened: a start has read it by then, and the kernel caches it."""
MOST_SEGMENTS = 8
"""Segments of startup data that are decrypted between two messages to the agent."""
_log = logging.getLogger(__name__)


class StartupFeed:
    """`take` the data of an image that is about to be opened, `begin` its start, `forget` it when the image is closed."""

    def __init__(
        self,
        most_bytes: int,
        send: Callable[[Callable[[int], wire.ToAgent]], Coroutine[None, None, None]],
        on_refused: Callable[[str], None],
    ) -> None:
        """Args: most_bytes: of all images; send: to the agent, if there is one; on_refused: called with the image whose recorded
        data is not what was sealed."""
        self.room = StartupRoom(most_bytes)
        self._send = send
        self._on_refused = on_refused
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The ends of starts, by image."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, image: str, profile: OpenProfile) -> StartupMemory | None:
        """The startup data of a profile, with its first segment; None: the image starts without."""
        try:
            return await StartupMemory.of(profile, self.room)
        except NoStartupRoom as error:
            _log.warning("the image %s starts without startup data: %s", image[:19], error)
        except (Tampered, OSError) as error:
            self._refuse(profile.image, error)
        return None

    def begin(self, opened: OpenedImage, startup: StartupMemory) -> None:
        """Decrypt the rest of an image's startup data while the image starts, and release all of it START_S later."""
        self._timers[opened.image] = asyncio.get_running_loop().call_later(START_S, self._end, opened)
        self._run(self._fill(opened, startup))

    def forget(self, image: str) -> None:
        """The image is closed, and its startup data with it."""
        if (timer := self._timers.pop(image, None)) is not None:
            timer.cancel()

    async def aclose(self) -> None:
        """End, after all images have been closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await in_thread(self.room.close)

    async def _fill(self, opened: OpenedImage, startup: StartupMemory) -> None:
        step = 1
        try:
            while opened.startup is startup and not startup.is_full:
                await startup.fill(step)
                step = min(2 * step, MOST_SEGMENTS)
                await self._send(lambda number: wire.Filled(number, opened.image, opened.nodeid, startup.filled))
        except (Tampered, OSError) as error:
            self._refuse(startup.recorded_of, error)
        finally:
            if opened.startup is startup and not startup.is_full:
                self._end(opened)  # no more of it will come

    def _end(self, opened: OpenedImage) -> None:
        self.forget(opened.image)
        opened.release_startup()
        self._run(self._send(lambda number: wire.Started(number, opened.image, opened.nodeid)))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, image: str, error: Exception) -> None:
        _log.warning("the startup data of %s is not used: %s", image[:19], error)
        if isinstance(error, Tampered):
            self._on_refused(image)
