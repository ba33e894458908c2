"""The images of a worker, with the functions that run in them, as its APIs show them.

Owns nothing: the store has the images, the registry what each function needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sockd.base.errors import ImageInUse, SockdError, UnknownImage
from sockd.base.notes import Progress
from sockd.functions.registry.registry import Registry
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.registry.reference import canonical
from sockd.images.store.image_garbage import ImageGarbage
from sockd.images.store.image_record import DIGEST, ImageRecord
from sockd.images.store.image_store import ImageStore

LEAVING_S = 10.0
"""How long the removal of an image waits for what still uses it: sandboxes of functions that were removed just now."""


@dataclass(frozen=True, slots=True)
class Users:
    """What remembered deploys say of one image."""

    functions: set[str] = field(default_factory=set)
    references: set[str] = field(default_factory=set)
    """As their settings name it; not those that name its digest."""


class Images:
    """The images that functions of one worker run in."""

    def __init__(
        self,
        store: ImageStore,
        registry: Registry,
        garbage: ImageGarbage,
        share: Callable[[ImageRecord], Awaitable[None]] | None = None,
    ) -> None:
        """Args: share: has the other workers of a group know an imported image; None: there are none."""
        self._share = share
        self.store = store
        self._registry = registry
        self._garbage = garbage

    def all(self) -> list[dict[str, Any]]:
        """The latest import first."""
        users, named = self._users(), set[str]()
        rows = []
        for record in self.store.all():
            row = self._row(record, users[record.digest])
            # A tag that was pushed again names its latest import.
            row["references"] = [each for each in row["references"] if each not in named] or [record.resolved]
            named.update(row["references"])
            rows.append(row)
        return rows

    def show(self, text: str) -> dict[str, Any]:
        """One of them, and how it wants to be run.

        Args: text: a digest, its beginning, a reference, or a function that runs in it. Raises: UnknownImage."""
        record = self._find(text)
        return {**self._row(record), "config": msgspec.to_builtins(record.config), "notes": list(record.notes)}

    async def add(self, reference: str, progress: Progress) -> dict[str, Any]:
        """Import an image from a registry. Raises: as `ImageStore.add`; in a group as `SharedFiles.put_image`."""
        return await self._shared(await self.store.add(reference, progress))

    def receiving(self) -> AbstractAsyncContextManager[None]:
        """As of `ImageStore`."""
        return self.store.receiving()

    async def add_archive(self, path: Path, reference: str, progress: Progress) -> dict[str, Any]:
        """Import an archive. Raises: as `ImageStore.add_archive`; in a group as `SharedFiles.put_image`."""
        return await self._shared(await self.store.add_archive(path, reference, progress))

    async def remove(self, text: str) -> dict[str, Any]:
        """Waits for sandboxes of removed functions to end.

        Raises: UnknownImage; ImageInUse, if a function that is remembered needs it."""
        record = self._removable(text)
        self._refuse_needed(record)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await self.store.until_unused(record.digest)
        self._refuse_needed(record)  # a deploy may have ended meanwhile
        if self.store.is_in_use(record.digest):
            raise ImageInUse(record.digest, ["a deploy or a sandbox that has not ended"])
        row = self._row(record)
        await self.store.remove(record.digest)
        return row

    async def _shared(self, record: ImageRecord) -> dict[str, Any]:
        if self._share is not None:
            await self._share(record)
        return self._row(record)

    def _find(self, text: str) -> ImageRecord:
        """An image that was here already when it was asked for has the reference of its import; its functions have theirs."""
        try:
            return self.store.find(text)
        except UnknownImage:
            for function in self._registry.list():
                reference = function.readable.image
                if function.image and (
                    text == function.name or (reference and canonical(text) == canonical(reference))
                ):
                    return self.store.get(function.image)
            raise

    def _removable(self, text: str) -> ImageRecord:
        """The image that a digest or a reference names. A function's name, too, finds an image, which that function needs: the
        error has its digest. Raises: UnknownImage, ImageInUse."""
        try:
            return self.store.find(text)
        except UnknownImage:
            digest = self._find(text).digest
            raise ImageInUse(digest, sorted(self._users()[digest].functions) or [text]) from None

    def _refuse_needed(self, record: ImageRecord) -> None:
        if functions := self._users()[record.digest].functions:
            raise ImageInUse(record.digest, sorted(functions))

    async def collect(
        self, *, clear_alarms: bool = False, restore: bool = False, forget_worker: str = ""
    ) -> dict[str, Any]:
        """Remove those that no function needs, also of the last hour, and collect the garbage of the chunk store.

        Args: clear_alarms, restore, forget_worker: as of `ImageGarbage.collect`.
        Raises: ChunkStoreFailed, whose message names what was removed before; BadRequest."""
        removed: list[ImageRecord] = []
        try:
            await self.store.collect(self._registry.images(), at_once=True, removed=removed)
            state = await self._garbage.collect(clear_alarms=clear_alarms, restore=restore, forget_worker=forget_worker)
        except SockdError as error:
            raise _with_removed(error, removed) from error
        return {"removed": [self._row(record) for record in removed], "store": state}

    async def disk_use(self) -> dict[str, Any]:
        """What the images take in the chunk store: each with the bytes that no other image has, too, and all together.

        Raises: ChunkStoreFailed."""
        rows = self.all()
        names = {row["digest"]: await self._garbage.chunk_names(self.store.get(row["digest"])) for row in rows}
        users = Counter(name for found in names.values() for name in found)
        for row in rows:
            found = names[row["digest"]]
            row["stored_bytes"] = len(found) * CHUNK_BYTES
            row["own_bytes"] = sum(users[name] == 1 for name in found) * CHUNK_BYTES
        return {"images": rows, "stored_bytes": len(users) * CHUNK_BYTES}

    def _row(self, record: ImageRecord, users: Users | None = None) -> dict[str, Any]:
        users = users or self._users()[record.digest]
        return {
            "digest": record.digest,
            "reference": record.reference,
            "references": [record.reference, *sorted(users.references - {record.reference})],
            "size_bytes": record.size_bytes,
            "layers": record.layers,
            "imported_at": record.imported_at,
            "mounted": self.store.mounts.is_mounted(record.digest),
            "functions": sorted(users.functions),
        }

    def _users(self) -> dict[str, Users]:
        """By digest."""
        found: dict[str, Users] = defaultdict(Users)
        for deploy in self._registry.deploys_in_images():
            users = found[deploy.image]
            users.functions.add(deploy.name)
            reference = deploy.readable.image
            if reference and not DIGEST.fullmatch(reference):
                users.references.add(canonical(reference))
        return found


def _with_removed(error: SockdError, removed: list[ImageRecord]) -> SockdError:
    """The error, also with the images that were removed before it."""
    if not removed:
        return error
    names = ", ".join(record.digest[:19] for record in removed)
    failed = error.again()
    failed.message = f"{error.message}; these images were removed before: {names}"
    failed.args = (failed.message,)
    return failed
