"""Startup profiles for starts: those of the image, which are on the disk or in the store, and those derived from other builds.

Owns the threads that wait for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import ChunkStoreFailed, StoreUnavailable
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile
from sockd.images.store.derived_profile import derived_profile
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.kept_copies import kept_profile, stored_profile
from sockd.images.store.opened_store import ChunkParts, OpenedStore
from sockd.images.store.store_waits import StoreWaits

PROFILE_THREADS = 8
"""Starts that fetch a startup profile from the store at a time; others wait for a thread."""
_log = logging.getLogger(__name__)


class StartProfiles:
    """Finds the profile with which an image starts."""

    def __init__(self, store: OpenedStore, waits: StoreWaits) -> None:
        self._store = store
        self._waits = waits
        self._threads = ThreadPoolExecutor(PROFILE_THREADS, "startup profiles")
        """That wait for the store; those which all share must not."""

    async def own(
        self, parts: ChunkParts, manifest: Manifest, directory: Path, stack: contextlib.ExitStack
    ) -> OpenProfile | None:
        """The startup profile, which the stack closes, also after a cancellation; None: a start goes on without."""

        def kept() -> OpenProfile | None:
            found = kept_profile(parts.catalog, manifest, directory)
            if found is not None:
                stack.callback(found.close)
            return found

        if (found := await in_thread(kept)) is not None:
            return found

        def stored() -> Awaitable[OpenProfile | None]:
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(self._threads, stored_profile, parts.catalog, manifest, directory)

        try:
            found = await self._waits.answer(parts.store, stored, _close)
        except ChunkStoreFailed as error:
            _log.warning("the image %s starts without a startup profile: %s", manifest.image[:19], error.message)
            return None
        if found is not None:
            stack.callback(found.close)
        return found

    async def derived(
        self, parts: ChunkParts, record: ImageRecord, manifest: Manifest, stack: contextlib.ExitStack
    ) -> OpenProfile | None:
        """As `own`, from that of another image."""
        known = (parts.catalog, record, manifest, self._store.all(), self._store.images)

        def kept() -> OpenProfile | None:
            found = derived_profile(*known, asks_store=False)
            if found is not None:
                stack.callback(found.close)
            return found

        def stored() -> Awaitable[OpenProfile | None]:
            derive = functools.partial(derived_profile, *known, asks_store=True)
            return asyncio.get_running_loop().run_in_executor(self._threads, derive)

        try:
            found = await self._waits.answer(parts.store, stored, _close)
        except StoreUnavailable:  # it is silent: a profile on the disk may do
            return await in_thread(kept)
        if found is not None:
            stack.callback(found.close)
        return found

    def close(self) -> None:
        """End the threads, whose requests have ended."""
        self._threads.shutdown()


def _close(profile: OpenProfile | None) -> None:
    if profile is not None:
        profile.close()
