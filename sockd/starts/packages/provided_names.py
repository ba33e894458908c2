"""The names, metadata and entry points that one directory of sys.path provides to imports. Read once, when it is published.

A distribution of the install cache is such a directory, and so is a function's code. Reads file names and metadata, never code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import suppress
from email.parser import BytesHeaderParser
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

MAX_ENTRIES = 20_000
"""Most files and directories looked at, without the contents of regular packages. One with more is taken to offer every name."""
METADATA_MAX_BYTES = 4 << 20
_SUFFIXES = (".py", ".pyc", ".so")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_METADATA = re.compile(r"(?P<name>.+?)(-[^-]+)*\.(dist-info|egg-info)")


class Provided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a directory offers. Names below a regular package are left out: its own `__path__` decides them."""

    modules: frozenset[str] = frozenset()
    """Modules and regular packages, by dotted name: at top level, or in a namespace package."""
    namespaces: frozenset[str] = frozenset()
    """Directories without an `__init__`: portions of namespace packages, whether there is code in them or not."""
    metadata: frozenset[str] = frozenset()
    """Names of distributions that `importlib.metadata` finds in it, normalised."""
    groups: frozenset[str] = frozenset()
    """Groups of their entry points."""
    requires: frozenset[str] = frozenset()
    """Names of distributions that they require, normalised: on any platform, but no optional ones."""
    has_pth: bool = False
    """Whether the distribution has .pth files, which run before the first import."""
    has_bin: bool = False
    """Whether the distribution has scripts, and so a place on PATH."""
    is_partial: bool = False
    """Whether the distribution has more entries than were examined."""

    def offers(self, name: str) -> bool:
        return self.is_partial or name in self.modules or name in self.namespaces


NOTHING = Provided()


def provided_by(directory: Path) -> Provided:
    """What a directory offers when it is on sys.path. Raises: OSError."""
    names = _Names()
    names.add_directory(directory, "")
    metadata: set[str] = set()
    groups: set[str] = set()
    requires: set[str] = set()
    for entry in _entries(directory):
        if match := _METADATA.fullmatch(entry.name):
            metadata.add(canonicalize_name(match["name"]))
            groups |= entry_point_groups(Path(entry.path) / "entry_points.txt")
            requires |= required_names(Path(entry.path) / "METADATA")
    return Provided(
        modules=frozenset(names.modules),
        namespaces=frozenset(names.namespaces),
        metadata=frozenset(metadata),
        groups=frozenset(groups),
        requires=frozenset(requires),
        has_pth=any(entry.name.endswith(".pth") and entry.is_file() for entry in _entries(directory)),
        has_bin=(directory / "bin").is_dir(),
        is_partial=names.is_full,
    )


class _Names:
    """The names below a directory, as the path finder would see them."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.namespaces: set[str] = set()
        self._looked_at = 0

    @property
    def is_full(self) -> bool:
        return self._looked_at > MAX_ENTRIES

    def add_directory(self, directory: Path, prefix: str) -> None:
        for entry in _entries(directory):
            self._looked_at += 1
            if self.is_full:
                return
            if entry.is_dir():
                self._add_package(entry, prefix)
            elif (stem := module_name(entry.name)) is not None and stem != "__init__":
                self.modules.add(prefix + stem)

    def _add_package(self, entry: os.DirEntry[str], prefix: str) -> None:
        if not _IDENTIFIER.fullmatch(entry.name) or entry.name == "__pycache__":
            return
        if any(module_name(inner.name) == "__init__" for inner in _entries(Path(entry.path))):
            self.modules.add(prefix + entry.name)
            return
        self.namespaces.add(prefix + entry.name)
        self.add_directory(Path(entry.path), f"{prefix}{entry.name}.")


def module_name(file_name: str) -> str | None:
    """The module that a file of this name would be, or None.

    An extension's name ends with a tag of the interpreters that load it, such as `.cpython-313-x86_64-linux-gnu.so`. Whether it
    is the right one is not asked: one too many is only imported by its users themselves."""
    stem = next((file_name.removesuffix(suffix) for suffix in _SUFFIXES if file_name.endswith(suffix)), None)
    if stem and file_name.endswith(".so"):
        stem = stem.partition(".")[0]
    return stem if stem and _IDENTIFIER.fullmatch(stem) else None


def entry_point_groups(file: Path) -> frozenset[str]:
    """The sections of an entry_points.txt; none if there is no such file, or it is not one."""
    parser = ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    try:
        parser.read_string(_read(file).decode(errors="replace"))
    except ConfigError:
        return frozenset()
    return frozenset(parser.sections())


def may_require(directory: Path) -> frozenset[str]:
    """The distributions that those in a directory require, or would with an extra; normalised."""
    return frozenset(
        canonicalize_name(requirement.name)
        for entry in _entries(directory)
        if _METADATA.fullmatch(entry.name)
        for requirement in _requirements(Path(entry.path) / "METADATA")
    )


def required_names(file: Path) -> frozenset[str]:
    """The distributions that a METADATA names as required without an extra."""
    return frozenset(
        canonicalize_name(requirement.name)
        for requirement in _requirements(file)
        if "extra" not in str(requirement.marker or "")
    )


def _requirements(file: Path) -> Iterator[Requirement]:
    for line in BytesHeaderParser().parsebytes(_read(file)).get_all("Requires-Dist", []):
        with suppress(InvalidRequirement):
            yield Requirement(str(line))


def _read(file: Path) -> bytes:
    """A file's bytes, as many as metadata may have; empty if there is none."""
    try:
        with file.open("rb") as opened:
            return opened.read(METADATA_MAX_BYTES)
    except OSError:
        return b""


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from entries
