"""The list of a backup's parts, a file in it, and the directory that becomes the backup when all of them are in it.

The list is written twice: first to say that the backup is not complete, and at the end with each part's files and bytes. So a
restore recognizes a backup that was interrupted, and one that has lost something since.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sockd.base.syncing import sync_directory, sync_tree
from sockd.client.cli.worker.state_copy import new_directory
from sockd.client.console.output import USAGE, Failure

LIST = "backup.json"


class Part(msgspec.Struct, frozen=True):
    """One entry at the top of a backup."""

    files: int
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> Part:
        """Count what is there; links are no files. Raises: OSError."""
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        sizes = [each.stat().st_size for each in files if not each.is_symlink()]
        return cls(len(sizes), sum(sizes))


class Parts(msgspec.Struct, frozen=True):
    """The list itself."""

    is_complete: bool = False
    parts: dict[str, Part] = {}

    def lost(self, backup: Path) -> list[str]:
        """Describe each part of which a backup has less than when it was made. Raises: OSError."""
        words = []
        for name, part in self.parts.items():
            if not os.path.lexists(backup / name):
                words.append(name)
            elif (now := Part.of(backup / name)).files < part.files:
                words.append(f"{part.files - now.files} of {part.files} files of {name}")
            elif now.size_bytes < part.size_bytes:
                words.append(f"{part.size_bytes - now.size_bytes} of {part.size_bytes} bytes of {name}")
        return words


def listed(backup: Path) -> Parts | None:
    """Read the list of a backup; None: an older sockd made it. Raises: Failure, if it is not complete; OSError."""
    try:
        parts = msgspec.json.decode((backup / LIST).read_bytes(), type=Parts)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        parts = Parts()
    if not parts.is_complete:
        raise Failure(
            f"{backup} is not complete",
            why="the `sockd backup` that wrote it was interrupted, or still runs",
            fix="restore another backup",
        )
    return parts


@contextmanager
def unfinished(backup: Path) -> Iterator[Path]:
    """Yield a directory next to the backup, which gets the backup's name if the body succeeds, and is removed if it fails.

    Raises: Failure; OSError."""
    directory = backup.with_name(f"{backup.name}.part")
    if os.path.lexists(directory):
        _remove_interrupted(directory)
    with new_directory(directory), _held(directory):
        _write(directory, Parts())
        yield directory
        _write(
            directory,
            Parts(True, {each.name: Part.of(each) for each in sorted(directory.iterdir()) if each.name != LIST}),
        )
        sync_tree(directory)
        os.rename(directory, backup)
        sync_directory(backup.parent)


def _remove_interrupted(directory: Path) -> None:
    if (
        directory.is_symlink()
        or not directory.is_dir()
        or not ((directory / LIST).exists() or not os.listdir(directory))
    ):
        raise Failure(f"{directory} exists, and is no interrupted backup", fix="move it away", exit_code=USAGE)
    with _held(directory):
        shutil.rmtree(directory)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """While this lasts, no other backup writes to a directory. Raises: Failure, if one does; OSError."""
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"another `sockd backup` writes to {directory}", exit_code=USAGE) from None
        yield
    finally:
        os.close(directory_fd)


def _write(directory: Path, parts: Parts) -> None:
    list_fd = os.open(directory / LIST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(list_fd, "wb") as file:
        file.write(msgspec.json.encode(parts))
