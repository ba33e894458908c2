"""The files of deploys in a group of workers: blobs that each worker fetches when it needs them. Its own directories are caches.

Owns the fetches that run, and their files in tmp/.
"""

from __future__ import annotations

import functools
import io
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import CodeLost, ImageLost, Tampered
from sockd.base.single_flight import SingleFlight
from sockd.functions.blobs.blob_names import CODE, IMAGE, INITSCRIPT
from sockd.functions.blobs.blobs import Blobs
from sockd.functions.code.code_store import CodeStore
from sockd.functions.code.packing import write_archive
from sockd.functions.modules.initscript_store import InitscriptStore
from sockd.functions.registry.function_record import FunctionRecord
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore, adopt


class SharedFiles:
    """One worker's. `aclose` last."""

    def __init__(
        self,
        blobs: Blobs,
        code: CodeStore,
        tmp: Path,
        initscripts: InitscriptStore | None = None,
        images: ImageStore | None = None,
    ) -> None:
        """Args: tmp: on the file system of `code`; initscripts, images: None: functions have none."""
        self._blobs = blobs
        self._code = code
        self._tmp = tmp
        self._initscripts = initscripts
        self._images = images
        self._fetches: SingleFlight[str, None] = SingleFlight()

    async def aclose(self) -> None:
        """End the fetches."""
        await self._fetches.aclose()

    # -- of a deploy under way, before it is recorded, or of an import

    async def put_code(self, digest: str, archive: Path) -> None:
        """Share a deployed archive. Args: digest: of its code. Raises: as `Blobs.put`."""
        await self._blobs.put(CODE + digest, functools.partial(io.FileIO, archive))

    async def put_initscript(self, digest: str, wasm: bytes) -> None:
        """Share a module. Raises: as `Blobs.put`."""
        await self._blobs.put(INITSCRIPT + digest, lambda: io.BytesIO(wasm))

    async def put_image(self, image: ImageRecord) -> None:
        """Share what the worker knows of an image, whose chunks are in the chunk store. Raises: as `Blobs.put`."""
        await self._blobs.put(IMAGE + image.digest, lambda: io.BytesIO(msgspec.json.encode(image)))

    # -- of a recorded one

    async def put(self, record: FunctionRecord) -> None:
        """Share the files of a deploy that a worker had alone.

        Raises: CodeLost, ImageLost: they are not here; as `Blobs.put`."""
        code = self._code.path(record.digest)
        if not code.is_dir() or self._lacks_module(record.initscript):
            raise CodeLost(record.name)
        if record.image and not self._has_image(record.image):
            raise ImageLost(record.image, is_unreadable=False)
        await self._blobs.put(CODE + record.digest, lambda: _archive(code))
        if record.initscript and self._initscripts is not None:
            await self.put_initscript(record.initscript, await in_thread(self._initscripts.source, record.initscript))
        if record.image and self._images is not None:
            await self.put_image(self._images.get(record.image))

    def lacks(self, record: FunctionRecord) -> bool:
        """Whether files of a deploy are not here that `fetch` gets."""
        return self._lacks_code(record) or self._lacks_module(record.initscript)

    async def fetch(self, record: FunctionRecord) -> None:
        """Get the files of a deploy that are not here.

        Raises: CodeLost: no worker has kept them; Tampered; as `Blobs.get`; BadArchive, StorageFull."""
        if self._lacks_code(record):
            await self._fetches.do(CODE + record.digest, lambda: self._fetch_code(record))
        if self._lacks_module(record.initscript):
            await self._fetches.do(INITSCRIPT + record.initscript, lambda: self._fetch_module(record))
        if record.image:
            await self.fetch_image(record.image)

    async def fetch_image(self, digest: str) -> None:
        """Get an image that another worker has shared, unless it is here already or no worker has. Raises: as `fetch`."""
        if self._images is not None and not self._has_image(digest):
            await self._fetches.do(IMAGE + digest, lambda: self._fetch_image(digest))

    def _lacks_code(self, record: FunctionRecord) -> bool:
        return not record.image and not self._code.path(record.digest).is_dir()

    def _lacks_module(self, digest: str) -> bool:
        return bool(digest) and self._initscripts is not None and not self._initscripts.has(digest)

    def _has_image(self, digest: str) -> bool:
        return self._images is not None and digest in self._images.directories.records

    async def _fetch_code(self, record: FunctionRecord) -> None:
        async def publish(path: Path) -> None:
            code = await in_thread(self._code.publish, path)
            if code.digest != record.digest:
                raise Tampered(f"the code of {record.name!r} in the chunk store is other code")

        if not await self._fetched(CODE + record.digest, publish):
            raise CodeLost(record.name)

    async def _fetch_module(self, record: FunctionRecord) -> None:
        async def keep(path: Path) -> None:
            assert self._initscripts is not None
            wasm = await in_thread(path.read_bytes)
            if await in_thread(self._initscripts.keep, wasm) != record.initscript:
                raise Tampered(f"the initscript of {record.name!r} in the chunk store is another one")

        if not await self._fetched(INITSCRIPT + record.initscript, keep):
            raise CodeLost(record.name)

    async def _fetch_image(self, digest: str) -> None:
        """An image that no worker has shared may be in a registry still."""

        async def keep(path: Path) -> None:
            assert self._images is not None
            image = msgspec.json.decode(await in_thread(path.read_bytes), type=ImageRecord)
            if image.digest != digest:
                raise Tampered(f"the chunk store has the record of another image than {digest[:19]}")
            await adopt(self._images, image)

        await self._fetched(IMAGE + digest, keep)

    async def _fetched(self, name: str, use: Callable[[Path], Awaitable[None]]) -> bool:
        """Have a blob used as a file; False: there is no such blob."""
        path = self._tmp / f"shared-{uuid.uuid4().hex}"
        try:
            if not await self._blobs.get(name, path):
                return False
            await use(path)
            return True
        finally:
            await in_thread(path.unlink, missing_ok=True)


@contextmanager
def _archive(code: Path) -> Iterator[BinaryIO]:
    """Published code as a zip file without a name. Blocks."""
    with tempfile.TemporaryFile(dir=code.parent) as file:
        write_archive(code, file)
        yield file
