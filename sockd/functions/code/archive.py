"""Archives: what a zip file may bring into a code tree, and the way in.

    zip file ── read_directory ──► entries ── plan ──► Plan ── extract ──► Tree (in a fresh directory)

`plan` is pure and decides everything that can be decided from names and declared sizes; `extract` makes only regular
files and directories, each new (O_EXCL), below one directory fd, and counts what it writes. A refused archive is a
BadArchive whose message says what to change. Owns nothing: the directory is the caller's, also after a failure.

Left out rather than refused: `__pycache__`. Bytecode is compiled from the source after extraction, so that no stale or
foreign one is taken for it.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sockd.base import zip_directory
from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.base.zip_directory import Entry

NAME_BYTES = 255
"""NAME_MAX of every file system in use."""
PATH_BYTES = 1024
"""Longest path inside a code tree: leaves room for /var/task in PATH_MAX, and bounds the depth."""
BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One file of a code tree. Its mode is 0755 or 0644; nothing else of a mode survives."""

    path: str
    executable: bool
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Tree:
    """What was extracted: files and directories (implied ones too), each sorted by path."""

    files: tuple[TreeFile, ...]
    directories: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def digest(self) -> str:
        """SHA-256 over paths, modes and contents, in hex; the same for every zip that extracts to the same tree."""
        tree = hashlib.sha256()
        for path in self.directories:
            _update(tree, b"d", path)
        for file in self.files:
            _update(tree, b"x" if file.executable else b"f", file.path)
            tree.update(file.sha256)
        return tree.hexdigest()


def _update(tree: hashlib._Hash, kind: bytes, path: str) -> None:
    data = path.encode()
    tree.update(kind + len(data).to_bytes(4, "little") + data)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an archive would become: directories in the order of their making, then files with their entries."""

    directories: tuple[str, ...]
    files: tuple[tuple[str, Entry], ...]


def plan(entries: Sequence[Entry], *, max_files: int, max_bytes: int) -> Plan:
    """The files and directories that the entries of an archive become. Pure.

    Args:
        entries: of `read_directory`.
        max_files: most files and directories together, directories that are only implied included.
        max_bytes: most bytes that all entries together may declare.
    Raises: BadArchive."""
    files: dict[str, Entry] = {}
    directories: set[str] = set()
    explicit: set[str] = set()
    for entry in entries:
        path = checked_path(entry.name)
        _check_kind(entry)
        if path in files or path in explicit:
            raise BadArchive(f"{entry.label} is in the archive twice")
        if entry.name.endswith("/"):
            explicit.add(path)
            _add_lineage(directories, path)
        else:
            files[path] = entry
            _add_lineage(directories, os.path.dirname(path))
        if len(files) + len(directories) > max_files:
            raise BadArchive(f"the archive makes more than {max_files} files and directories (code.max_files)")
    if both := files.keys() & directories:
        raise BadArchive(f"{min(both)!r} is both a file and a directory in the archive")
    declared = sum(entry.size_bytes for entry in entries)
    if declared > max_bytes:
        raise BadArchive(f"the archive unpacks to {declared} bytes; the limit is {max_bytes} (code.max_code_bytes)")
    return Plan(
        tuple(sorted(path for path in directories if not _is_bytecode(path))),
        tuple(sorted((path, entry) for path, entry in files.items() if not _is_bytecode(path))),
    )


def checked_path(name: str) -> str:
    """The path below the tree's root that an entry's name means; empty for the root ("./"). Raises BadArchive."""
    shown = zip_directory.label(name)
    if not name or "\0" in name:
        raise BadArchive(f"the name {shown} is empty or holds a zero byte")
    if "\\" in name:
        raise BadArchive(f"the name {shown} holds a backslash; zip names use '/'")
    if name.startswith("/"):
        raise BadArchive(f"the name {shown} is absolute")
    if name == "./":
        return ""
    parts = name.removeprefix("./").removesuffix("/").split("/")
    if ".." in parts:
        raise BadArchive(f"the name {shown} leaves the archive ('..')")
    if "" in parts or "." in parts:
        raise BadArchive(f"the name {shown} has an empty part ('//' or '/./')")
    if len(name.encode()) > PATH_BYTES or any(len(part.encode()) > NAME_BYTES for part in parts):
        raise BadArchive(f"the name {shown} is too long; limits are {NAME_BYTES} bytes a part and {PATH_BYTES} in all")
    return "/".join(parts)


def _check_kind(entry: Entry) -> None:
    kind = stat.S_IFMT(entry.unix_mode)
    if stat.S_ISLNK(entry.unix_mode):
        raise BadArchive(f"{entry.label} is a symbolic link; put the file itself into the archive (zip without -y)")
    if entry.is_hard_link:
        raise BadArchive(f"{entry.label} is a hard link; put the file itself into the archive")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchive(f"{entry.label} is a device, pipe or socket")
    is_directory = entry.name.endswith("/")
    if (kind and is_directory != (kind == stat.S_IFDIR)) or (is_directory and entry.size_bytes):
        raise BadArchive(f"{entry.label} is half file, half directory")
    if entry.flags & zip_directory.ENCRYPTED:
        raise BadArchive(f"{entry.label} is encrypted")


def _add_lineage(directories: set[str], path: str) -> None:
    """Adds a directory and those above it; stops at the first known one, so that depth does not cost once per file."""
    while path and path not in directories:
        directories.add(path)
        path = os.path.dirname(path)


def _is_bytecode(path: str) -> bool:
    return BYTECODE in path.split("/")


def extract(zip_path: Path, directory: Path, config: CodeConfig) -> Tree:
    """Extracts a zip file into an empty directory that only we can write to. Blocks.

    Files become 0644, or 0755 when the archive says executable; directories 0755; all owned by this process's user.
    On an error the directory holds an unfinished tree that the caller removes.

    Raises: BadArchive; OSError (the disk is full, the file is gone)."""
    with open(zip_path, "rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > config.max_zip_bytes:
            raise BadArchive(
                f"the archive has {size_bytes} bytes; the limit is {config.max_zip_bytes} (code.max_zip_bytes)"
            )

        def read_at(offset: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, offset)

        entries = zip_directory.read_directory(read_at, size_bytes, max_entries=config.max_files)
        planned = plan(entries, max_files=config.max_files, max_bytes=config.max_code_bytes)
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for path in planned.directories:
                os.mkdir(path, dir_fd=root)
                os.chmod(path, 0o755, dir_fd=root)  # whatever the umask
            files = tuple(_extract_file(read_at, root, path, entry) for path, entry in planned.files)
        finally:
            os.close(root)
    return Tree(files, planned.directories)


def _extract_file(read_at: zip_directory.ReadAt, root: int, path: str, entry: Entry) -> TreeFile:
    executable = bool(entry.unix_mode & 0o111)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    digest = hashlib.sha256()
    with open(fd, "wb", buffering=0) as file:
        for piece in zip_directory.contents(read_at, entry):
            digest.update(piece)
            _write_all(file, piece)
        os.fchmod(fd, 0o755 if executable else 0o644)
    return TreeFile(path, executable, entry.size_bytes, digest.digest())


def _write_all(file: io.FileIO, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]
