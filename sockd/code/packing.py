"""Packing: a function's directory as a zip file, the way the command line sends it.

Owns nothing. The counterpart of `archive`, under the same rules for names and kinds, so that what packs also deploys.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from sockd.code.archive import BYTECODE, Tree, TreeFile, checked_path
from sockd.plain.config import CodeConfig
from sockd.plain.errors import BadArchive
from sockd.plain.zip_directory import UNIX

LEFT_BEHIND = frozenset({".git", BYTECODE, ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"})
OF_EDITORS = re.compile(r"\..*\.sw[a-z]|.*~|\.#.*|\.DS_Store")
"""What editors and file managers leave beside a file while it is open."""
PACKED_TIME = (1980, 1, 1, 0, 0, 0)
"""The zip format's epoch: the same directory packs to the same bytes."""
FILE = stat.S_IFREG | 0o644


def pack(directory: Path, config: CodeConfig | None = None) -> bytes:
    """A directory as a zip file; the same directory gives the same bytes, whenever and by whom it is packed. Blocks.

    Version control, bytecode, virtual environments, tools' caches (LEFT_BEHIND) and editors' files (OF_EDITORS) stay behind.

    Raises: BadArchive for what could not be deployed (links, devices, names) or is over the limits; OSError."""
    return pack_with_digest(directory, config)[0]


def pack_with_digest(
    directory: Path,
    config: CodeConfig | None = None,
    *,
    only: Sequence[str] | None = None,
    added: Mapping[str, bytes] | None = None,
) -> tuple[bytes, str]:
    """As `pack`, with the digest that the code store will give to what is in it.

    Args:
        only: names at the top of the directory, the rest stays behind; None: all of it.
        added: files to be packed instead of the directory's own, or besides."""
    config = config or CodeConfig()
    added = added or {}
    buffer = io.BytesIO()
    size_bytes = 0
    files, directories = [], []
    walked = islice(_walk(directory, "", only), config.max_files + 1)
    found = [(path, mode) for path, mode in walked if path not in added]
    _check_sizes(directory, [path for path, _ in found], config)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for count, (path, mode) in enumerate(sorted([*found, *((path, FILE) for path in added)]), start=1):
            if count > config.max_files:
                raise BadArchive(f"{directory} holds more than {config.max_files} files and directories")
            info = zipfile.ZipInfo(path, PACKED_TIME)
            info.create_system, info.external_attr = UNIX, mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            is_directory = path.endswith("/")
            data = b""
            if not is_directory:
                # No more than may be is read: one file may be larger than this machine's memory.
                room = config.max_code_bytes - size_bytes
                data = added[path] if path in added else _beginning(directory / path, room + 1)
            size_bytes += len(data)
            if size_bytes > config.max_code_bytes:
                raise BadArchive(f"{directory} holds more than {config.max_code_bytes} bytes")
            archive.writestr(info, data)
            if is_directory:
                directories.append(path[:-1])
            else:
                files.append(TreeFile(path, bool(mode & 0o111), len(data), hashlib.sha256(data).digest()))
    if buffer.tell() > config.max_zip_bytes:
        raise BadArchive(f"{directory} packs to {buffer.tell()} bytes; the limit is {config.max_zip_bytes}")
    tree = Tree(tuple(sorted(files, key=lambda file: file.path)), tuple(sorted(directories)))
    return buffer.getvalue(), tree.digest()


def _check_sizes(directory: Path, paths: Sequence[str], config: CodeConfig) -> None:
    """Before anything is read. Raises: BadArchive, OSError."""
    sizes = {path: os.stat(directory / path, follow_symlinks=False).st_size for path in paths if not path.endswith("/")}
    total = sum(sizes.values())
    if total > config.max_code_bytes:
        largest = max(sizes, key=sizes.__getitem__)
        raise BadArchive(
            f"{directory} holds {total} bytes, and the limit is {config.max_code_bytes}; the largest file is {largest!r} with "
            f"{sizes[largest]}"
        )


def _beginning(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(min(size, os.fstat(file.fileno()).st_size + 1))


def _walk(directory: Path, prefix: str, only: Sequence[str] | None = None) -> Iterator[tuple[str, int]]:
    """(path, st_mode) of everything to be packed; paths of directories end with a slash."""
    for item in sorted(os.scandir(directory / prefix), key=lambda item: item.name):
        path = prefix + item.name
        if item.name in LEFT_BEHIND or OF_EDITORS.fullmatch(item.name) or (only is not None and item.name not in only):
            continue
        try:
            checked_path(path)
        except UnicodeEncodeError:
            raise BadArchive(f"the name {path!r} is not UTF-8") from None
        if item.is_dir(follow_symlinks=False):
            yield path + "/", stat.S_IFDIR | 0o755
            yield from _walk(directory, path + "/")
        elif item.is_file(follow_symlinks=False):
            executable = item.stat(follow_symlinks=False).st_mode & 0o111
            yield path, stat.S_IFREG | (0o755 if executable else 0o644)
        else:
            raise BadArchive(f"{path!r} is a link, device, pipe or socket; only files and directories are deployed")
