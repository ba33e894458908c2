"""The container images that functions of a state directory run in, and which of them it has. Reads files; asks no worker."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sockd.base.own_command import runnable

IMAGES, KEY, OWN_STORE = "images", "images.key", "chunks"
STORE = Path(OWN_STORE) / "store"
PARTS_OF_STORE = ("objects", "roots")
"""In the order of a copy: an object names only chunks that were there before it."""


class NeededImage(NamedTuple):
    """One that deploys name which are remembered."""

    digest: str
    reference: str
    """As their settings name it; empty: it was uploaded, so that a worker cannot fetch it."""
    functions: tuple[str, ...]

    @property
    def words(self) -> str:
        """Describe the image and its functions, for people."""
        return f"{self.reference or self.digest[:19]} ({', '.join(self.functions)})"


def needed(state: Path) -> list[NeededImage]:
    """The images of a registry's functions, by their digests. Raises: sqlite3.Error."""
    functions: dict[str, set[str]] = {}
    references: dict[str, str] = {}
    with closing(sqlite3.connect(f"file:{state / 'registry.sqlite'}?mode=rw", uri=True)) as registry:
        for name, digest, config in registry.execute("SELECT name, image, config FROM versions WHERE image != ''"):
            functions.setdefault(digest, set()).add(name)
            reference = str(json.loads(config).get("image") or "")
            if not reference.startswith("sha256:"):
                references[digest] = reference
    return [
        NeededImage(digest, references.get(digest, ""), tuple(sorted(names)))
        for digest, names in sorted(functions.items())
    ]


def lacking(state: Path) -> list[NeededImage]:
    """Return the needed images that are not in the state directory. Raises: sqlite3.Error."""
    return [
        each for each in needed(state) if not (state / IMAGES / each.digest.partition(":")[2] / "record.json").exists()
    ]


def has_own_store(state: Path) -> bool:
    """Whether the images' chunks are in the state directory, and not in a store elsewhere."""
    return (state / STORE).is_dir()


def how_they_return(images: list[NeededImage]) -> list[str]:
    """What becomes of images that are not there, in a line for those that the worker can fetch and in one for the others."""
    lines = []
    if fetched := [each.words for each in images if each.reference]:
        lines.append(f"imported again from their registries: {', '.join(fetched)}")
    if uploaded := [each.words for each in images if not each.reference]:
        lines.append(
            f"uploaded, and to be imported again by you ({runnable('sockd images add REF')}, or deploy the function again): "
            f"{', '.join(uploaded)}"
        )
    return lines
