"""Packing: a function's directory as a zip file, the way the command line sends it.

Owns nothing. The counterpart of `archive`, under the same rules for names and kinds, so that what packs also deploys. What of the
directory is packed decides `selection`.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.base.spelling import size
from sockd.base.zip_directory import UNIX
from sockd.functions.code.archive import BYTECODE, Tree, TreeFile
from sockd.functions.code.selection import SOCKDIGNORE, LeftOut, Selected, select

PACKED_TIME = (1980, 1, 1, 0, 0, 0)
"""The zip format's epoch: the same directory packs to the same bytes."""
FILE = stat.S_IFREG | 0o644
SHOWN_LARGEST = 5
MOST_LISTED = 1_000_000
"""Files and directories that a list of what would be packed may have."""


class PackedDirectory(NamedTuple):
    """A directory as a zip file."""

    archive: bytes
    digest: str
    """What the code store will name the code."""
    left_out: tuple[LeftOut, ...]


def pack(directory: Path, config: CodeConfig | None = None) -> bytes:
    """Return a directory as a zip file; the same directory gives the same bytes, whenever and by whom it is packed. Blocks.

    Raises: BadArchive for what could not be deployed (devices, names, links that leave the directory) or is over the limits;
        OSError."""
    return pack_directory(directory, config).archive


def pack_directory(
    directory: Path,
    config: CodeConfig | None = None,
    *,
    only: Sequence[str] | None = None,
    added: Mapping[str, bytes] | None = None,
) -> PackedDirectory:
    """As `pack`, with what else there is to know.

    Args:
        only: names at the top of the directory, the rest stays behind; None: all of it.
        added: files to be packed instead of the directory's own, or besides."""
    config = config or CodeConfig()
    added = added or {}
    selection = select(directory, only=only, max_entries=config.max_files)
    selected = [each for each in selection.packed if each.path not in added]
    _check_size(directory, selected, config)
    entries = sorted(
        [*selected, *(Selected(path, FILE, len(data)) for path, data in added.items())], key=lambda e: e.path
    )
    buffer = io.BytesIO()
    size_bytes = 0
    files, directories = [], []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, PACKED_TIME)
            info.create_system, info.external_attr = UNIX, entry.mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            is_directory = entry.path.endswith("/")
            data = b""
            if not is_directory:
                # No more than may be is read: one file may be larger than this machine's memory.
                room = config.max_code_bytes - size_bytes
                data = added[entry.path] if entry.path in added else _beginning(directory / entry.path, room + 1)
            size_bytes += len(data)
            if size_bytes > config.max_code_bytes:  # a file grew while it was read
                raise BadArchive(f"{directory} holds more than {config.max_code_bytes} bytes (code.max_code_bytes)")
            archive.writestr(info, data)
            if is_directory:
                directories.append(entry.path[:-1])
            else:
                files.append(TreeFile(entry.path, bool(entry.mode & 0o111), len(data), hashlib.sha256(data).digest()))
    _check_packed_size(directory, buffer, archive.infolist(), config)
    tree = Tree(tuple(sorted(files, key=lambda file: file.path)), tuple(sorted(directories)))
    return PackedDirectory(buffer.getvalue(), tree.digest(), selection.left_out)


def _check_size(directory: Path, selected: Sequence[Selected], config: CodeConfig) -> None:
    """Before anything is read. Raises: BadArchive."""
    total = sum(each.size_bytes for each in selected)
    if total > config.max_code_bytes:
        what = f"{directory} holds {size(total)}"
        sizes = ((each.path, each.size_bytes) for each in selected)
        raise _too_large(what, "code.max_code_bytes", config.max_code_bytes, sizes)


def _check_packed_size(
    directory: Path, buffer: io.BytesIO, infos: Sequence[zipfile.ZipInfo], config: CodeConfig
) -> None:
    """Raises: BadArchive."""
    if buffer.tell() > config.max_zip_bytes:
        what = f"{directory} packs to {size(buffer.tell())}"
        sizes = ((info.filename, info.compress_size) for info in infos)
        raise _too_large(what, "code.max_zip_bytes", config.max_zip_bytes, sizes)


def _too_large(what: str, setting: str, limit: int, sizes: Iterable[tuple[str, int]]) -> BadArchive:
    largest = sorted(sizes, key=lambda each: -each[1])[:SHOWN_LARGEST]
    named = ", ".join(f"{path} {size(length)}" for path, length in largest)
    return BadArchive(
        f"{what}; the limit is {size(limit)} ({setting} in the worker's configuration). Largest: {named}. "
        f"Name what the function does not need in {SOCKDIGNORE}"
    )


def _beginning(path: Path, most: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size + 1))


def write_archive(directory: Path, file: BinaryIO) -> None:
    """Write published code to a file as a zip file again, which extracts to the same tree, for workers that do not have it.
    Bytecode is left out. Blocks. Raises: OSError."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(directory.rglob("*")):
            relative = path.relative_to(directory)
            if BYTECODE in relative.parts:
                continue
            info = zipfile.ZipInfo(f"{relative}/" if path.is_dir() else str(relative), PACKED_TIME)
            info.create_system, info.external_attr = UNIX, path.stat().st_mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            if path.is_dir():
                archive.writestr(info, b"")
                continue
            with archive.open(info, "w") as packed, open(path, "rb") as source:
                shutil.copyfileobj(source, packed)
