"""The directories of the worker's images, each with a record of its image.

    images/<hex of the digest>/record.json    an `ImageRecord`; written last, so that an image without one is none
    images/<hex of the digest>/...            the image's files: the importer's
    tmp/image-<uuid>/                         being imported or removed

Owns the directories. Those that write or remove files block.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from itertools import repeat
from pathlib import Path

import msgspec

from sockd.base.errors import BadImage, UnknownImage
from sockd.images.registry.reference import canonical
from sockd.images.store.image_record import ImageRecord

RECORD = "record.json"
TEMPORARY = "image-"
MOST_NAMED = 5
"""Beginnings of digests that an error names."""
_log = logging.getLogger(__name__)


class ImageDirectories:
    """The images of one worker. Args: root, tmp: directories on one file system."""

    def __init__(self, root: Path, tmp: Path) -> None:
        self._root = root
        self._tmp = tmp
        self.records: dict[str, ImageRecord] = {}
        """By digest."""
        self._unreadable: set[str] = set()
        """Directories of images, by name, whose records could not be read; the next import of the image replaces one."""

    def recover(self) -> None:
        """Find the images of an earlier daemon, and remove what a killed one left half done. Blocks briefly."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self._tmp.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover)
        for directory in self._root.iterdir():
            try:
                record = msgspec.json.decode((directory / RECORD).read_bytes(), type=ImageRecord)
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("images/%s has no record that can be read: %s", directory.name, error)
                self._unreadable.add(directory.name)
                continue
            self.records[record.digest] = record

    def get(self, digest: str) -> ImageRecord:
        """Raises: UnknownImage."""
        record = self.records.get(digest)
        if record is None:
            raise UnknownImage(digest)
        return record

    def all(self) -> list[ImageRecord]:
        """The latest import first."""
        return sorted(self.records.values(), key=lambda record: -record.imported_at)

    def find(self, text: str) -> ImageRecord:
        """By a digest, the first digits of one, or a reference, also a short one. Raises: UnknownImage, BadImage."""
        digits = text.removeprefix("sha256:")
        found = [each for each in self.all() if each.hex.startswith(digits)] if len(digits) >= 4 else []
        names = {text, canonical(text)}
        found = found or [each for each in self.all() if not names.isdisjoint((each.reference, each.resolved))][:1]
        if len(found) > 1:
            raise BadImage(f"{text} is the beginning of {len(found)} digests; write {self._distinct(found)}")
        if not found:
            raise UnknownImage(text)
        return found[0]

    def is_unreadable(self, digest: str) -> bool:
        """Return whether an image's directory is here, and its record could not be read."""
        return digest.removeprefix("sha256:") in self._unreadable

    def of(self, record: ImageRecord) -> Path:
        """Return where an image's files are; what is put next to them goes with the image."""
        return self._root / record.hex

    def new(self) -> Path:
        """Make an empty directory for an image that is being imported."""
        building = self._new_tmp()
        building.mkdir(0o700)
        return building

    def publish(self, record: ImageRecord, building: Path) -> None:
        """Write the record into a directory of `new`, and make that the image's."""
        with open(building / RECORD, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        if record.hex in self._unreadable:
            shutil.rmtree(self.of(record))
            self._unreadable.discard(record.hex)
        building.rename(self.of(record))

    def forget(self, record: ImageRecord) -> None:
        """Remove an image's record from memory; `remove` removes its directory."""
        self.records.pop(record.digest, None)

    def remove(self, record: ImageRecord) -> None:
        """Remove an image's directory."""
        leaving = self._new_tmp()
        self.of(record).rename(leaving)
        shutil.rmtree(leaving, True)

    def _distinct(self, records: list[ImageRecord]) -> str:
        """The shortest beginnings that no other image has, of the first few."""
        others = [each.hex for each in self.all()]
        shortest = (
            next(
                each.hex[:size]
                for size in range(5, 65)
                if sum(map(str.startswith, others, repeat(each.hex[:size]))) == 1
            )
            for each in records[:MOST_NAMED]
        )
        return " or ".join([*shortest, *(["another"] if len(records) > MOST_NAMED else [])])

    def _new_tmp(self) -> Path:
        return self._tmp / f"{TEMPORARY}{uuid.uuid4().hex}"
