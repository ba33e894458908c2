"""Copies of what a state directory holds: entry by entry, each as a whole, with owners and modes; databases by SQLite's own
backup.

Owns a copy until it is whole.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path


@contextmanager
def new_directory(directory: Path) -> Iterator[None]:
    """Create a directory that is closed to other users; remove it if the body fails. Raises: OSError."""
    os.mkdir(directory, 0o700)
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as of one moment, while it is written. Raises: OSError, sqlite3.Error."""
    if not source.exists():
        return
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Not read-only: who reads a database with a write-ahead log takes part in its locks.
    with (
        closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True)) as theirs,
        closing(sqlite3.connect(target)) as ours,
    ):
        theirs.backup(ours)


def copy_new_entries(source: Path, target: Path) -> None:
    """Copy each entry of a directory completely or not at all: the worker may remove it meanwhile.

    Raises: OSError, shutil.Error."""
    if not source.is_dir():
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if (target / entry.name).exists():
            continue
        part = target / f".{entry.name}.part"
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, part, symlinks=True, copy_function=copy_file)
            elif entry.is_file(follow_symlinks=False):
                copy_file(entry.path, str(part))
            else:
                continue
        except (FileNotFoundError, shutil.Error):
            if os.path.lexists(entry.path):
                raise
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
            continue
        os.rename(part, target / entry.name)


def copy_file(source: str, target: str) -> str:
    """Copy a file or a symbolic link, with its owner and mode. Raises: OSError."""
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        found = os.stat(source)
        os.chown(target, found.st_uid, found.st_gid)
        os.chmod(target, stat.S_IMODE(found.st_mode))
    return target


def size_mb(directory: Path) -> float:
    """The lengths of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6


def copy_growing(source: Path, target: Path) -> None:
    """Copy a tree to which files are added while it is copied, and from which some may vanish. Raises: OSError, shutil.Error."""
    if not source.is_dir():
        return
    for directory, _, names in os.walk(source):
        there = target / Path(directory).relative_to(source)
        there.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copystat(directory, there)
        for name in names:
            with suppress(FileNotFoundError):
                copy_file(os.path.join(directory, name), str(there / name))
