"""The files of one unpacked wheel: validate them before use, describe them, and set their permissions.

Pure functions over a directory that nothing else writes to; all of them block.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sockd.starts.packages.provided_names import module_name

_libc = ctypes.CDLL(None, use_errno=True)
# SAFETY: int syncfs(int fd), syncfs(2); no pointers.
_libc.syncfs.argtypes = [ctypes.c_int]
_libc.syncfs.restype = ctypes.c_int

_SUFFIXES = (".py", ".so")
_NOT_MODULES = frozenset(("bin", "include", "share", "etc", "lib", "__pycache__"))
"""Where a wheel's scripts, headers and data go (its .data directory), unless they hold an __init__.py."""


class BadTree(Exception):
    """A wheel that must not be published; the message says why and names no host path."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is importable in a tree, and what its users must know."""

    modules: tuple[str, ...]
    pth_files: tuple[str, ...]
    has_bin: bool


def check(tree: Path, *, max_bytes: int) -> None:
    """Refuses a tree with anything but plain files and directories, or with too many bytes.

    A link could name a host file, which the compiler (root) would read into bytecode that everybody sees.
    Raises: BadTree."""
    total = 0
    for entry in _walk(tree):
        mode = entry.stat(follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BadTree(f"{os.path.relpath(entry.path, tree)} is neither a file nor a directory")
        total += entry.stat(follow_symlinks=False).st_size if stat.S_ISREG(mode) else 0
        if total > max_bytes:
            raise BadTree(f"it is over {max_bytes >> 20} MB unpacked (packages.max_package_mb)")


def seal(tree: Path) -> int:
    """Gives every file the mode that sandboxes need, whatever the daemon's umask: all read, only the owner may write.

    Returns: the length of all files in bytes."""
    os.chmod(tree, 0o755)
    total = 0
    for entry in _walk(tree):
        status = entry.stat(follow_symlinks=False)
        mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o111 else 0o644
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(entry.path, mode)
        total += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return total


def describe(tree: Path) -> Contents:
    """What the tree adds to an interpreter that has it on sys.path."""
    with os.scandir(tree) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    return Contents(
        modules=tuple(dict.fromkeys(module for entry in found if (module := _module(entry)))),
        pth_files=tuple(entry.name for entry in found if entry.name.endswith(".pth") and entry.is_file()),
        has_bin=any(entry.name == "bin" and entry.is_dir() for entry in found),
    )


def sync(directory: Path) -> None:
    """Everything written to the file system of `directory` is on the disk: one call for a thousand files.

    Raises: OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd):
            raise OSError(ctypes.get_errno(), f"syncfs: {os.strerror(ctypes.get_errno())}", str(directory))
    finally:
        os.close(fd)


def _module(entry: os.DirEntry[str]) -> str | None:
    """The module that an entry of a sys.path directory is, or None."""
    name = entry.name
    if entry.is_dir():
        holds_code = os.path.exists(os.path.join(entry.path, "__init__.py")) or (
            name not in _NOT_MODULES and any(inner.name.endswith(_SUFFIXES) for inner in _walk(Path(entry.path)))
        )
        return name if holds_code and name.isidentifier() else None
    return module_name(name) if name.endswith(_SUFFIXES) else None


def _walk(tree: Path) -> Iterator[os.DirEntry[str]]:
    """Every entry below, parents first, following no link."""
    pending = [os.fspath(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
