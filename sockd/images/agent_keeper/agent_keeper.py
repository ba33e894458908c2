"""The agent's process, kept running, and the connection of FUSE, which outlives it.

Owns both. When a process ends, the next one gets copies of the same descriptors and the same images, and the kernel sends it what
was read and not answered (FUSE_NOTIFY_RESEND, Linux 6.9): readers wait and go on. When it ends too often, or the kernel cannot
send again, the connection is closed, and reads fail with EIO.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sockd.base.errors import ImageUnavailable, Tampered
from sockd.images.agent import agent_wire as wire
from sockd.images.agent_keeper.agent_link import AgentEnded, AgentLink, AgentSettings
from sockd.images.agent_keeper.device_holder import HolderGone
from sockd.images.agent_keeper.fuse_mount import FuseMount
from sockd.images.profiles.startup_memory import StartupMemory
from sockd.linux.confined.confined_process import Jail

MOST_ENDS, ENDS_WITHIN_S = 6, 60.0
"""So many ends of the process within so long, and the connection is given up."""
FIRST_PAUSE_S = 0.1
"""Before the second restart; the first is at once, each later pause is twice as long."""
START_S = 20.0
"""From exec until the process has all images; one that stood by for as long has `answer_s`."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedImage:
    """An image that is served, whichever process does it."""

    image: str
    nodeid: int
    root: str
    table: int
    """A memfd with the chunk table."""
    first: tuple[int, ...]
    """Chunks that are prefetched."""
    has_profile: bool
    startup: StartupMemory | None = None
    """While the image starts."""
    needs_startup: bool = False
    """Whether it was recorded of another image: a record of this start takes blocks from it."""
    starts: int = 0
    """The number of the process that served it first."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that go with an Open."""
        return (self.table,) if self.startup is None else (self.table, self.startup.file)

    def release_startup(self) -> None:
        """Without startup data from now on. Again is nothing."""
        startup, self.startup = self.startup, None
        if startup is not None:
            startup.close()

    def close(self) -> None:
        """Close the descriptors. Once."""
        os.close(self.table)
        self.release_startup()


@dataclass(slots=True)
class Ends:
    """POLICY: when an ended process is followed by another, and when no more."""

    times_s: deque[float] = field(default_factory=deque)

    def pause_s(self, now_s: float) -> float | None:
        """How long to wait after an end at `now_s`; None: give up."""
        self.times_s.append(now_s)
        while self.times_s[0] < now_s - ENDS_WITHIN_S:
            self.times_s.popleft()
        recent = len(self.times_s)
        if recent >= MOST_ENDS:
            return None
        return 0.0 if recent == 1 else FIRST_PAUSE_S * 2.0 ** (recent - 2)


class AgentKeeper:
    """`start`, `ask`, `aclose`. When it ends by itself, it calls `on_giving_up` before any read has failed, and `on_given_up` in
    the end; then it is of no use."""

    def __init__(
        self,
        jail: Jail,
        settings: AgentSettings,
        slab: int,
        mount: FuseMount | None,
        images: Mapping[str, OpenedImage],
        on_trouble: Callable[[wire.Trouble], None],
        on_giving_up: Callable[..., None],
        on_given_up: Callable[[], None],
    ) -> None:
        """Args:
        mount: owned from now on; None: images are only written whole.
        images: those that each process serves.
        on_giving_up: with the cause, and whether the process has ended too often (`too_often`)."""
        self._jail = jail
        self._settings = settings
        self._source = settings.source
        self._slab = slab
        self.mount = mount
        self._images = images
        self._on_trouble = on_trouble
        self._on_giving_up = on_giving_up
        self._on_given_up = on_given_up
        self._loop = asyncio.get_running_loop()
        self._serving: asyncio.Future[AgentLink] = self._loop.create_future()
        self.why_down = "starting"
        """Why no process serves now, for people; empty: one does."""
        self.starts = 0
        self._standby: asyncio.Task[AgentLink] | None = None
        """A process that has imported everything and waits."""
        self._keeping = self._loop.create_task(self._keep(), name="agent of images")

    @property
    def pid(self) -> int:
        """The pid of the launcher; 0 if no process serves."""
        return 0 if self.why_down else self._serving.result().pid

    async def link(self) -> AgentLink:
        """The process that serves, or the next one. Raises: ImageUnavailable: there will be none."""
        return await asyncio.shield(self._serving)

    async def settled(self) -> None:
        """Wait until a process serves, or there will be none: a read may have failed because the last one has just ended."""
        with contextlib.suppress(ImageUnavailable):
            while True:
                link = await self.link()
                link.look()
                if not link.is_ended:
                    return
                await link.left.wait()

    async def ask(
        self,
        question: Callable[[int], wire.ToAgent],
        descriptors: Callable[[], tuple[int, ...]] = tuple,
        *,
        takes_long: bool = False,
    ) -> wire.Answer:
        """The answer of whichever process lives long enough.

        Args:
            descriptors: called for each process.
            takes_long: otherwise a process that does not answer within `answer_s` is ended.

        Raises: ImageUnavailable; SockdError, the agent's."""
        while True:
            link = await self.link()
            try:
                return await link.ask(question, descriptors(), within_s=None if takes_long else self._settings.answer_s)
            except AgentEnded:
                await link.left.wait()

    async def open(self, opened: OpenedImage) -> None:
        """Have it served, or served from other chunks; it is among `images`. Raises: ImageUnavailable; also when it was closed
        before an agent was there."""

        def descriptors() -> tuple[int, ...]:
            if not self._is_open(opened):
                raise ImageUnavailable(f"the image {opened.image[:19]} was closed meanwhile")
            return opened.descriptors

        with _without_refused(opened):
            await self.ask(lambda number: _open(number, opened), descriptors)
        opened.starts = opened.starts or self.starts

    async def use_source(self, source: wire.SourceSettings) -> None:
        """Have chunks from other cache nodes from now on, which is all that differs. Raises: ImageUnavailable."""
        self._source = source
        await self.ask(self._use_nodes)

    def _use_nodes(self, number: int) -> wire.UseNodes:
        return wire.UseNodes(number, self._source.nodes)

    async def aclose(self) -> None:
        """End the process, then the connection."""
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        await self._end_standby()
        await self._close_mount()

    async def _keep(self) -> None:
        ends, too_often = Ends(), True
        try:
            while True:
                try:
                    self.why_down = await self._live()
                except HolderGone as error:
                    self.why_down, too_often = str(error), False
                    break
                except (OSError, TimeoutError, AgentEnded) as error:
                    self.why_down = str(error) or "it ended while it started"
                if self.mount is not None and self.mount.is_lost:
                    self.why_down, too_often = "the holder of the FUSE connection has ended", False
                    break
                pause_s = ends.pause_s(time.monotonic())
                if pause_s is None:
                    self.why_down += f", the last of {MOST_ENDS} ends within {ENDS_WITHIN_S:g} s"
                    break
                if self.mount is not None and not self.mount.can_resend:
                    too_often = False
                    break
                _log.warning("the agent of images ended (%s); it is started again in %.1f s", self.why_down, pause_s)
                if pause_s:
                    await asyncio.wait([self._loop.create_future()], timeout=pause_s)
        finally:
            self._fail(f"the agent of images ended ({self.why_down})")
        _log.error("the agent of images ended (%s); images that are in use cannot be read any more", self.why_down)
        self._on_giving_up(self.why_down, too_often=too_often)  # in the step in which `settled` ends
        await self._end_standby()
        await self._close_mount()
        self._on_given_up()

    async def _live(self) -> str:
        """One process from its start to its end; how it ended. Raises: OSError, TimeoutError, AgentEnded."""
        self.starts += 1
        link = await self._next_link()
        try:
            async with self.mount.lend() if self.mount else contextlib.nullcontext(()) as devices:
                link.set_up(source := self._source, self._slab, devices)
            async with asyncio.timeout(max(self._settings.answer_s, link.started_s + START_S - time.monotonic())):
                for opened in list(self._images.values()):
                    if not self._is_open(opened):
                        continue
                    with _without_refused(opened):
                        await link.ask(lambda number, opened=opened: _open(number, opened), opened.descriptors)  # type: ignore[misc]
                await link.ask(wire.Serve)
                while source is not self._source:  # the nodes have changed meanwhile
                    source = self._source
                    await link.ask(self._use_nodes)
            if self.mount is not None and self.starts > 1:
                await self.mount.resend()
            self.why_down = ""
            self._serving.set_result(link)
            if self._settings.standby:
                self._standby = self._loop.create_task(self._start_link(), name="standby of the agent of images")
            return await link.ended()
        finally:
            if self._serving.done():
                self._serving = self._loop.create_future()
            link.left.set()
            await link.aclose()

    def _is_open(self, opened: OpenedImage) -> bool:
        """False: it was closed while something was waited for, and another file may have the number of its chunk table."""
        return self._images.get(opened.image) is opened

    async def _next_link(self) -> AgentLink:
        """The process that stands by, or a new one. Raises: OSError."""
        standby, self._standby = self._standby, None
        if standby is not None:
            try:
                link = await standby
            except OSError as error:
                _log.warning("no agent of images stands by: %s", error)
            else:
                if not link.is_ended:
                    return link
                await link.aclose()
        return await self._start_link()

    async def _start_link(self) -> AgentLink:
        return await AgentLink.start(self._jail, self._settings, self._on_trouble)

    async def _end_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            with contextlib.suppress(OSError):
                await (await standby).aclose()

    def _fail(self, why: str) -> None:
        self._serving.set_exception(ImageUnavailable(why))
        self._serving.exception()  # or asyncio logs that it was never retrieved

    async def _close_mount(self) -> None:
        mount, self.mount = self.mount, None
        if mount is not None:
            await mount.aclose()


@contextlib.contextmanager
def _without_refused(opened: OpenedImage) -> Iterator[None]:
    """An agent that refuses startup data serves the image without it; the next one is not given it."""
    try:
        yield
    except Tampered as error:
        opened.release_startup()
        _log.error("the agent of images refuses the startup data of %s: %s", opened.image[:19], error.message)


def _open(number: int, opened: OpenedImage) -> wire.Open:
    filled = opened.startup.filled if opened.startup is not None else 0
    return wire.Open(number, opened.image, opened.nodeid, opened.root, opened.first, opened.has_profile, filled)
