"""The images of a worker as files that EROFS can mount: read on demand through the agent, or written whole.

Owns the agent's directory, with the L1 cache's file and the whole images, the images that are open, their startup data, and
the keeper of the agent's process.

The event loop never touches a file of the FUSE mount: the kernel would wait for the agent, and the agent for the loop. Files that
`open` returns are mounted and read in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import ImageUnavailable, SockdError
from sockd.images.agent import agent_wire as wire
from sockd.images.agent.fuse_messages import BadMessage
from sockd.images.agent_keeper.agent_directory import AgentDirectory
from sockd.images.agent_keeper.agent_keeper import AgentKeeper, OpenedImage
from sockd.images.agent_keeper.agent_link import AgentSettings, trouble_error
from sockd.images.agent_keeper.agent_watch import AgentWatch
from sockd.images.agent_keeper.fuse_mount import FuseMount
from sockd.images.agent_keeper.startup_feed import StartupFeed
from sockd.images.agent_keeper.startup_recorder import recorded, used_chunks
from sockd.images.agent_keeper.whole_images import NOT_ON_DEMAND, WholeImages
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile, Profile, first_chunks
from sockd.linux.confined.confined_process import Jail
from sockd.linux.memory_file import memory_file

GIVEN_UP_S = 30.0
"""How long `open` fails after the agent ended too often, or after its connection was lost twice within so long."""
OPEN_S = 30.0
"""For an image that is read on demand; a whole one takes as long as it is large."""
SETTLE_S = 10.0
"""How long the end of a sandbox is unexplained while the agent's next process starts."""
_FIRST_NODE = 2
_log = logging.getLogger(__name__)


class ImageAgent:
    """`start`, then `open` and `close` images, `aclose`."""

    def __init__(
        self,
        jail: Jail,
        settings: AgentSettings,
        directory: AgentDirectory,
        on_trouble: Callable[[str, SockdError], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._jail = jail
        self._settings = settings
        self._directory = directory
        self._on_trouble = on_trouble
        self._images: dict[str, OpenedImage] = {}
        self._users: dict[str, int] = {}
        self._whole = WholeImages(directory)
        self._startups = StartupFeed(settings.startup_bytes, self._tell, on_refused)
        self._next_node = _FIRST_NODE
        self._beginning = asyncio.Lock()
        self._keeper: AgentKeeper | None = None
        self._watch = AgentWatch(lambda: self._tell(wire.Ping))
        self._changing: set[asyncio.Task[None]] = set()
        """Changes of the list of nodes that no agent has acknowledged."""
        self._lost_s = self._again_s = float("-inf")
        """When the agent was given up, and from when on another is started."""
        self._why_given_up = ""
        self._is_settled = asyncio.Event()
        """Set, except between the two calls of a keeper that gives up, when images are marked as lost."""
        self._is_settled.set()
        self.why_whole = "" if settings.on_demand else NOT_ON_DEMAND
        """Why images are written whole; empty: they are read on demand."""

    @classmethod
    async def start(
        cls,
        jail: Jail,
        settings: AgentSettings,
        directory: Path,
        on_trouble: Callable[[str, SockdError], None] = lambda image, error: None,
        on_refused: Callable[[str], None] = lambda image: None,
    ) -> ImageAgent:
        """Start the agent; this does not wait until it is ready.

        Args:
            directory: the worker's own, for the L1 cache and whole images.
            on_trouble: called on the loop when reads of an image have failed. After ImageUnavailable the image must be opened
                and mounted anew.
            on_refused: called on the loop when the startup data that was recorded of an image is not what was sealed.

        Raises: OSError: the directory cannot be used."""
        opened = AgentDirectory.open(directory)
        agent = cls(jail, settings, opened, on_trouble, on_refused)
        try:
            await agent._kept()
        except BaseException:
            opened.close()
            raise
        return agent

    @property
    def pid(self) -> int:
        """The pid of the agent's launcher; 0 if no process serves."""
        return self._keeper.pid if self._keeper else 0

    @property
    def starts(self) -> int:
        """Processes that were started for the connection there is."""
        return self._keeper.starts if self._keeper else 0

    async def ready(self) -> None:
        """Wait until a process serves. Raises: ImageUnavailable."""
        await (await self._kept()).link()

    async def settled(self) -> None:
        """Wait, but not for long, until a process serves or `on_trouble` was called because none will."""
        if self._keeper is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._keeper.settled()

    async def open(self, manifest: Manifest, profile: OpenProfile | None = None, *, metadata_chunks: int = 1) -> str:
        """Serve an image until `close` has been called as often. Returns the path of a file that EROFS can mount, for this
        process; open it in a thread only.

        Args:
            profile: of an earlier start of the same bytes, or derived from that of other ones; the caller closes it after this.
            metadata_chunks: the first so many are the metadata of EROFS.

        Raises: ImageUnavailable: there is no agent; ChunkStoreFailed."""
        keeper = await self._kept()
        image = manifest.image
        if image not in self._images:
            await self._add(manifest, profile, metadata_chunks)
        self._users[image] = self._users.get(image, 0) + 1
        opened = self._images[image]
        try:
            if (mount := keeper.mount) is None:
                return str(await self._whole.file(keeper, opened, manifest.size_bytes, self.why_whole))
            async with asyncio.timeout(OPEN_S):
                await keeper.open(opened)
            return mount.path(image)
        except TimeoutError:
            await self.close(image)
            raise ImageUnavailable(f"the agent of images does not answer ({keeper.why_down})") from None
        except BaseException:
            await self.close(image)
            raise

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        """Have chunks from other cache nodes from now on; reads under way go on. Args: nodes: ADDRESS:PORT by name."""
        source = msgspec.structs.replace(self._settings.source, nodes=dict(nodes))
        self._settings = replace(self._settings, source=source)
        if self._keeper is not None:
            task = asyncio.create_task(self._use_source(self._keeper, source), name="nodes of the agent of images")
            self._changing.add(task)
            task.add_done_callback(self._changing.discard)

    def look(self) -> None:
        """An image is mounted or read: soon see to it that the agent answers, or that the next one does."""
        self._watch.look()

    async def switch(self, manifest: Manifest) -> None:
        """Serve an open image from other chunks with the same plaintext, such as those of another root. Nothing, if it is not
        open. Raises: ImageUnavailable."""
        opened = self._images.get(manifest.image)
        if opened is None:
            return
        old, opened.table = opened.table, memory_file("chunk table", wire.chunk_table(manifest))
        os.close(old)
        opened.root, opened.first = manifest.root, ()
        if not self.why_whole:
            await (await self._kept()).open(opened)

    async def close(self, image: str) -> None:
        """Serve the image no more, when as many have closed as opened it. The file system on it should be unmounted."""
        left = self._users.get(image, 0) - 1
        if left > 0:
            self._users[image] = left
            return
        self._users.pop(image, None)
        opened = self._images.pop(image, None)
        if opened is None:
            return
        self._released(opened)
        keeper = self._keeper
        if self.why_whole:
            self._directory.discard(image)
        elif keeper is not None:
            with contextlib.suppress(ImageUnavailable):
                await keeper.ask(lambda number: wire.Close(number, image))

    async def used(self, image: str) -> int:
        """How many chunks of an image were read since it was opened. Raises: ImageUnavailable."""
        if self.why_whole or image not in self._images:
            return 0
        return len(await used_chunks(await self._kept(), image))

    async def profile(self, manifest: Manifest, most_bytes: int) -> Profile | None:
        """What was read of an open image since it was opened; None if that is not known: it is not open, or written whole, or
        the agent's process has ended meanwhile, or it was read from what another image's start has read, which was released
        (`startup_feed.START_S`).

        Args: most_bytes: of startup data; 0: none.
        Raises: ImageUnavailable; Tampered: the agent has handed over other bytes than a chunk's."""
        opened = self._images.get(manifest.image)
        if self.why_whole or opened is None:
            return None
        keeper = await self._kept()
        startup = await opened.startup.data(manifest.size_bytes) if opened.startup is not None else None
        if opened.needs_startup and startup is None:
            return None
        found = await recorded(keeper, manifest, most_bytes, startup)
        return found if keeper.starts == opened.starts else None

    async def counters(self) -> dict[str, float]:
        """All counters of the process that serves, and how many there were. Raises: ImageUnavailable."""
        keeper = await self._kept()
        answer = await keeper.ask(wire.AskCounters)
        assert isinstance(answer, wire.CountersAre)
        return {
            **answer.counters,
            "agent_starts": keeper.starts,
            "images": len(self._images),
            "startup_bytes": self._startups.room.held_bytes,
            "startup_refusals": self._startups.room.refusals,
        }

    async def aclose(self) -> None:
        """End the agent. Reads of images that are still mounted fail. Again is nothing."""
        await self._watch.aclose()
        for task in self._changing:
            task.cancel()
        await asyncio.gather(*self._changing, return_exceptions=True)
        async with self._beginning:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                await keeper.aclose()
        self._forget()
        await self._startups.aclose()
        self._directory.close()

    async def _kept(self) -> AgentKeeper:
        """The keeper, made anew when the one before has given up. Raises: ImageUnavailable."""
        await self._is_settled.wait()
        async with self._beginning:
            if self._keeper is None:
                if time.monotonic() < self._again_s:
                    raise self._given_up()
                self._keeper = AgentKeeper(
                    self._jail,
                    self._settings,
                    self._directory.l1,
                    None if self.why_whole else await self._mounted(),
                    self._images,
                    lambda trouble: self._on_trouble(trouble.image, trouble_error(trouble)),
                    self._giving_up,
                    self._gave_up,
                )
            return self._keeper

    async def _mounted(self) -> FuseMount | None:
        try:
            mount = await in_thread(
                partial(FuseMount.open, self._settings.threads, may_resend=self._settings.may_resend)
            )
            try:
                await mount.hand_over()
            except BaseException:
                mount.close()
                raise
            return mount
        except (OSError, BadMessage) as error:
            self.why_whole = str(error)
            _log.warning("images are written to the disk as a whole (see `sockd doctor`): %s", error)
            return None

    def _giving_up(self, why: str, *, too_often: bool) -> None:
        self._is_settled.clear()
        now_s = time.monotonic()
        self._again_s = now_s + given_up_s(now_s - self._lost_s, too_often=too_often)
        self._lost_s, self._why_given_up = now_s, why
        for image in list(self._images):
            self._on_trouble(image, self._given_up())

    def _given_up(self) -> ImageUnavailable:
        left_s = math.ceil(self._again_s - time.monotonic())
        return ImageUnavailable(f"the agent of images is given up: {self._why_given_up}", retry_after_s=max(left_s, 1))

    def _gave_up(self) -> None:
        self._keeper = None
        self._forget()
        self._is_settled.set()

    def _forget(self) -> None:
        for opened in self._images.values():
            self._released(opened)
        self._images.clear()
        self._users.clear()

    def _released(self, opened: OpenedImage) -> None:
        opened.close()
        self._startups.forget(opened.image)

    @staticmethod
    async def _use_source(keeper: AgentKeeper, source: wire.SourceSettings) -> None:
        with contextlib.suppress(ImageUnavailable):
            await keeper.use_source(source)

    async def _tell(self, question: Callable[[int], wire.ToAgent]) -> None:
        """What an agent need not know if there is none."""
        if self._keeper is not None:
            with contextlib.suppress(ImageUnavailable):
                await self._keeper.ask(question)

    async def _add(self, manifest: Manifest, profile: OpenProfile | None, metadata_chunks: int) -> None:
        startup = None
        if profile is not None and not self.why_whole:
            startup = await self._startups.take(manifest.image, profile)
        if manifest.image in self._images:  # another `open` was faster
            if startup is not None:
                startup.close()
            return
        most = max(self._settings.source.l1_bytes // 2 // CHUNK_BYTES, 1)
        first = first_chunks(profile.order if profile else None, metadata_chunks, len(manifest.chunks), most)
        try:
            table = memory_file("chunk table", wire.chunk_table(manifest))
        except BaseException:
            if startup is not None:
                startup.close()
            raise
        opened = self._images[manifest.image] = OpenedImage(
            manifest.image, self._next_node, manifest.root, table, first, profile is not None, startup
        )
        opened.needs_startup = startup is not None and startup.recorded_of != manifest.image
        self._next_node += 1
        if startup is not None:
            self._startups.begin(opened, startup)


def given_up_s(since_last_s: float, *, too_often: bool) -> float:
    """POLICY: how long no agent is started after one was given up. An agent that ended too often would do so again; one whose
    connection was lost need not, unless that happens again and again.

    Args: since_last_s: since one was given up before; too_often: it ended too often."""
    return GIVEN_UP_S if too_often or since_last_s < GIVEN_UP_S else 0.0
