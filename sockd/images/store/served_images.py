"""The images that a worker's agent serves now, and the failures of reads of them.

Owns the agent, which is started with the first image.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from sockd.base.errors import ImageUnavailable, SockdError
from sockd.images.agent.agent_wire import REPORT_PERIOD_S, error_of
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.checking import WRONG
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile
from sockd.images.store.image_record import ImageRecord, digest_of

StartAgent = Callable[[Callable[[str, SockdError], None], Callable[[str], None]], Awaitable[ImageAgent]]
"""Starts an agent, with what it calls when reads of an image have failed, and when its startup data was refused.
Raises: SockdError, OSError."""
_log = logging.getLogger(__name__)


class ServedImages:
    """The open images of one worker, by digest. A listener is called in the event loop."""

    def __init__(self, start_agent: StartAgent) -> None:
        self._start_agent = start_agent
        self.agent: ImageAgent | None = None
        """None: no image has been opened yet."""
        self._starting = asyncio.Lock()
        self.manifests: dict[str, Manifest] = {}
        """By digest, of images that are served."""
        self._users: Counter[str] = Counter()
        self._failures: dict[str, tuple[int, SockdError]] = {}
        """By digest: when a read failed last, and why."""
        self.doubted: set[str] = set()
        """Stored names of images of which the store did not give a chunk as it was stored, since they were checked last."""
        self.refused: list[Callable[[str], None]] = []
        """Listeners, called with the stored name of an image whose startup data was refused."""
        self.closed: list[Callable[[str], None]] = []
        """Listeners, called with the digest of an image that is served no more."""
        self.lost: list[Callable[[str, ImageUnavailable], None]] = []
        """Listeners, called with the digest of an image whose mount serves nothing any more, with the cause."""

    async def started(self) -> ImageAgent:
        """Return the agent, once it is started. Raises: SockdError, OSError."""
        async with self._starting:
            if self.agent is None:
                self.agent = await self._start_agent(self._trouble, self._refused)
            return self.agent

    async def start_early(self) -> None:
        """Start the agent while an image is imported. A failure is ignored here: opening the image reports it."""
        with contextlib.suppress(SockdError, OSError):
            await self.started()

    async def open(
        self, record: ImageRecord, manifest: Manifest, profile: OpenProfile | None, *, metadata_chunks: int
    ) -> str:
        """Return the path of an image's file, valid until `close`. Raises: SockdError, OSError."""
        agent = await self.started()
        served = await agent.open(manifest, profile, metadata_chunks=metadata_chunks)
        self.manifests[record.digest] = manifest
        self._users[record.digest] += 1
        return served

    async def close(self, record: ImageRecord) -> None:
        """Serve an image for one user less."""
        self._users[record.digest] -= 1
        if self._users[record.digest] <= 0:
            self._forget(record.digest)
        if self.agent is not None:
            await self.agent.close(record.stored_name)

    async def switch(self, manifest: Manifest) -> None:
        """Read an image, if it is open, as this manifest says from now on."""
        digest = digest_of(manifest.image)
        if digest in self.manifests and self.agent is not None:
            await self.agent.switch(manifest)
            self.manifests[digest] = manifest

    def roots(self) -> set[str]:
        """Return the roots of the images that are open."""
        return {manifest.root for manifest in self.manifests.values()}

    def look(self) -> None:
        """Have the agent watched: a start may wait for a read."""
        if self.agent is not None:
            self.agent.look()

    async def settled(self) -> None:
        """As `Importer.settled`."""
        if self.agent is not None:
            await self.agent.settled()

    async def counters(self) -> dict[str, float]:
        """Return the agent's counters; nothing while no image has been started. Raises: ImageUnavailable."""
        return await self.agent.counters() if self.agent is not None else {}

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        failed_ns, error = self._failures.get(record.digest, (0, None))
        # The agent is silent for a moment after each report: one from just before may be all that is heard of this failure.
        if error is None or failed_ns + int(REPORT_PERIOD_S * 1e9) < begun_ns:
            return None
        return error.again()

    async def aclose(self) -> None:
        """End the agent."""
        if self.agent is not None:
            await self.agent.aclose()

    def _trouble(self, image: str, error: SockdError) -> None:
        _log.warning("reads of the image %s fail: %s", image[:19], error.message)
        if isinstance(error, WRONG):
            self.doubted.add(image)
        digest = digest_of(image)
        self._failures[digest] = time.monotonic_ns(), with_remedy(error, image)
        if isinstance(error, ImageUnavailable):
            self._forget(digest)
            for listener in self.lost:
                listener(digest, error)

    def _refused(self, image: str) -> None:
        for listener in self.refused:
            listener(image)

    def _forget(self, digest: str) -> None:
        self.manifests.pop(digest, None)
        self._users.pop(digest, None)
        for listener in self.closed:
            listener(digest)


def with_remedy(error: SockdError, image: str) -> SockdError:
    """What failed, with what an operator can do if the store has lost or changed what it had. Args: image: its digest or name."""
    if not isinstance(error, WRONG):
        return error
    return error_of(type(error).__name__, f"{error.message}; it is of the image {image[:19]}: deploy that again")
