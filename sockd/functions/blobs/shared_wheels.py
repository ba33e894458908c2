"""Wheels that a worker of the group has built from source: the others install the same one, and build none.

A blob has the wheel's file name in its first line, then the wheel. A group that cannot be asked only costs another build. Owns
nothing.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sockd.base.blocking import in_thread
from sockd.base.errors import SockdError
from sockd.functions.blobs.blob_names import WHEEL
from sockd.functions.blobs.blobs import Blobs
from sockd.starts.packages.distribution import Distribution

_log = logging.getLogger(__name__)


class SharedWheels:
    """The wheels of one group (`installer.Wheels`)."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def fetch(self, distribution: Distribution, directory: Path) -> Path | None:
        """Write the wheel of a distribution into a directory; None: no worker has built it, or the group cannot be asked."""
        blob = directory / "shared"
        try:
            if not await self._blobs.get(WHEEL + distribution.digest, blob):
                return None
        except SockdError as error:
            _log.warning("%s is built here: %s", distribution.name, error.message)
            return None
        return await in_thread(_unpack, blob, directory)

    async def keep(self, distribution: Distribution, wheel: Path) -> None:
        """Share a wheel that was built here, if the group can be asked. Raises: OSError."""
        try:
            await self._blobs.put(WHEEL + distribution.digest, lambda: _packed(wheel))
        except SockdError as error:
            _log.warning("the wheel of %s is not shared: %s", distribution.name, error.message)


@contextmanager
def _packed(wheel: Path) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(dir=wheel.parent) as file, open(wheel, "rb") as source:
        file.write(wheel.name.encode() + b"\n")
        shutil.copyfileobj(source, file)
        yield file


def _unpack(blob: Path, directory: Path) -> Path:
    with open(blob, "rb") as source:
        wheel = directory / source.readline().decode().strip()
        with open(wheel, "xb") as file:
            shutil.copyfileobj(source, file)
    blob.unlink()
    return wheel
