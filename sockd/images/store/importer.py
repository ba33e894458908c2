"""What fetches the worker's images, writes their file systems, and gives them to be mounted: an interface."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sockd.base.errors import SockdError, StorageFull
from sockd.base.notes import Progress
from sockd.images.store.image_record import ImageRecord


class Importer(Protocol):
    """Fetches images and writes their file systems."""

    async def check_store(self) -> None:
        """Whether what images are kept in can be reached. Raises: SockdError."""

    async def prepare(self) -> None:
        """Start what imports and opens need, so that the first need not wait for it. Raises: SockdError, OSError."""

    async def import_image(self, reference: str, directory: Path, progress: Progress, *, path: str = "") -> ImageRecord:
        """Write an image's files into an empty directory.

        Args: path: of an archive that was uploaded; empty: the reference is for a registry.
        Raises: BadImage and its kinds, RegistryUnavailable, ImageAccessDenied, StorageFull."""

    async def adopt(self, record: ImageRecord, directory: Path) -> bool:
        """Write an image's files into an empty directory, of what another worker has imported. False: that is not there.

        Raises: SockdError, OSError."""

    def storage_full(self) -> StorageFull:
        """What is said of a disk without space. Blocks."""

    async def renew(self, record: ImageRecord, directory: Path, imported: Path) -> None:
        """An image that is here was imported again, into a directory of its own: what is lost here is taken from that.

        Raises: SockdError, OSError."""

    async def open(self, record: ImageRecord, directory: Path) -> str:
        """The path of the image's EROFS file, valid until `close`. Raises: SockdError, OSError."""

    def used(self) -> None:
        """Somebody may wait for a read of what `open` gave."""

    def failure_since(self, record: ImageRecord, begun_ns: int) -> SockdError | None:
        """As `ImageInUse` says."""

    async def settled(self) -> None:
        """As `ImageBase.settled`."""

    async def close(self, record: ImageRecord) -> None:
        """Let go of what `open` gave."""

    async def remove(self, record: ImageRecord) -> None:
        """The image is removed: whatever the importer has of it outside of its directory goes. Raises: SockdError."""

    async def aclose(self) -> None:
        """All images are unmounted."""
