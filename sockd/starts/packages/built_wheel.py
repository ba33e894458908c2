"""Checks a wheel from a build sandbox, which is untrusted, before an installer opens it.

A wheel is accepted if it contains only plain files below its own directory and is the distribution that was to be built. Blocks;
owns nothing.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Sequence
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sockd.base.errors import BadArchive
from sockd.base.zip_directory import Entry, contents, label, read_directory
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.starts.packages.wheel_tags import NEVER, preference

MAX_METADATA_BYTES = 4 << 20
_MODULE_SCHEMES = ("purelib", "platlib")
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
LONGEST_NAME = 200
"""Maximum length of a wheel's file name."""


class BadWheel(Exception):
    """A wheel that must not be installed; the message says why."""


def check(
    path: Path,
    filename: str,
    name: str,
    version: str,
    *,
    max_bytes: int,
    max_files: int,
    python: Interpreter = OWN_PYTHON,
) -> None:
    """Check that a wheel is this version of this package, for an interpreter of this platform.

    Args: filename: the name that the sandbox reports; max_bytes: maximum size of all files, unpacked; max_files: of the archive.
    Raises: BadWheel."""
    _check_filename(filename, name, version, python)
    try:
        with open(path, "rb") as file:

            def read_at(offset: int, length: int) -> bytes:
                return os.pread(file.fileno(), length, offset)

            entries = read_directory(read_at, os.fstat(file.fileno()).st_size, max_entries=max_files)
            _check_entries(entries, max_bytes)
            metadata = _metadata_of(entries)
            _check_places(entries, metadata.name.partition("/")[0])
            _check_metadata(b"".join(contents(read_at, metadata)), name, version)
            for entry in entries:
                deque(contents(read_at, entry), maxlen=0)  # the directory's sizes and checksums may be false
    except BadArchive as error:
        raise BadWheel(f"the wheel that was built is refused: {error.message}") from None


def _check_filename(filename: str, name: str, version: str, python: Interpreter) -> None:
    shown = repr(filename[:LONGEST_NAME])
    try:
        if len(filename) > LONGEST_NAME or not filename.isprintable() or "/" in filename:
            raise InvalidWheelFilename(shown)
        found_name, found_version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise BadWheel(f"the build has made {shown}, which is not the name of a wheel") from None
    if (str(found_name), found_version) != (name, Version(version)):
        raise BadWheel(f"the build has made {shown}, which is another distribution")
    if preference(filename, python) == NEVER:
        raise BadWheel(f"the build has made {shown}, which is not for Python {python.short} on this worker's platform")


def _check_entries(entries: Sequence[Entry], max_bytes: int) -> None:
    seen: set[str] = set()
    for entry in entries:
        parts = PurePosixPath(entry.name).parts
        is_plain = not entry.unix_mode or stat.S_IFMT(entry.unix_mode) in (0, stat.S_IFREG, stat.S_IFDIR)
        if not parts or parts[0] == "/" or ".." in parts or "\\" in entry.name or not entry.name.isprintable():
            raise BadWheel(f"the wheel that was built has a file outside of it: {label(entry.name)}")
        if not is_plain or entry.is_hard_link:
            raise BadWheel(f"the wheel that was built has {label(entry.name)}, neither a file nor a directory")
        if entry.name in seen:
            raise BadWheel(f"the wheel that was built has {label(entry.name)} twice")
        seen.add(entry.name)
    if sum(entry.size_bytes for entry in entries) > max_bytes:
        raise BadWheel(f"the wheel that was built is over {max_bytes >> 20} MB unpacked (packages.max_package_mb)")


def _metadata_of(entries: Sequence[Entry]) -> Entry:
    directories = {
        entry.name.partition("/")[0] for entry in entries if entry.name.partition("/")[0].endswith(".dist-info")
    }
    found = [entry for entry in entries if entry.name in {f"{directory}/METADATA" for directory in directories}]
    if len(directories) != 1 or len(found) != 1 or found[0].size_bytes > MAX_METADATA_BYTES:
        raise BadWheel("the wheel that was built has not one .dist-info directory with METADATA")
    return found[0]


def _check_places(entries: Sequence[Entry], own: str) -> None:
    """Check that no file becomes part of another distribution. Args: own: the wheel's .dist-info directory. Raises: BadWheel.

    An installer spreads NAME.data/SCHEME: purelib and platlib go where modules are, and data below the whole installation."""
    data_directory = own.removesuffix(".dist-info") + ".data"
    for entry in entries:
        first, *rest = PurePosixPath(entry.name).parts
        if first.endswith(".data"):
            if first != data_directory:
                raise BadWheel(f"the wheel that was built has {label(entry.name)}, which is another distribution's")
            scheme, *rest = rest or [""]
            first = rest[0] if scheme in _MODULE_SCHEMES and rest else ""
            if scheme not in _MODULE_SCHEMES and _is_among_modules(rest):
                raise BadWheel(f"the wheel that was built puts {label(entry.name)} among the modules of others")
        if first.endswith(_METADATA_SUFFIXES) and first != own:
            raise BadWheel(f"the wheel that was built has {label(entry.name)}, which is another distribution's")


def _is_among_modules(parts: Sequence[str]) -> bool:
    return any(part.endswith(_METADATA_SUFFIXES) or part in ("site-packages", "dist-packages") for part in parts)


def _check_metadata(text: bytes, name: str, version: str) -> None:
    headers = BytesHeaderParser().parsebytes(text)
    said = str(headers.get("Name", "")), str(headers.get("Version", ""))
    try:
        is_right = (canonicalize_name(said[0]), Version(said[1])) == (name, Version(version))
    except InvalidVersion:
        is_right = False
    if not is_right:
        raise BadWheel(f"the wheel that was built says that it is {said[0][:80]!r} {said[1][:80]!r}")
