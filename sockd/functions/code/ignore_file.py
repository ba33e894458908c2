"""IgnoreFile: the patterns of one `.gitignore` or `.sockdignore`.

Owns nothing, reads one file. Knows nothing of what is left out for another reason (`left_out`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sockd.base.errors import BadArchive
from sockd.functions.code import ignore_pattern
from sockd.functions.code.ignore_pattern import IgnorePattern

MAX_BYTES = 1 << 20
"""Longest ignore file."""


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """The patterns of one file, which hold below the directory that the file is in."""

    path: str
    """The path of the file, relative to the directory that is packed."""
    prefix: str
    """The directory that the patterns hold in, with a slash at its end; empty: the directory that is packed."""
    lines: tuple[tuple[int, str, IgnorePattern], ...]
    """Number and text of each line that has a pattern, the last one first."""

    def verdict(self, path: str) -> tuple[bool, str] | None:
        """Decide about a path with the last pattern that matches it.

        Args:
            path: relative to the directory that is packed, a directory with a slash at its end.
        Returns: whether the path is ignored, and the deciding line; None if no pattern matches."""
        inside = path.removeprefix(self.prefix)
        for number, text, pattern in self.lines:
            if pattern.matches(inside):
                return not pattern.includes, f"{self.path} line {number}: {text}"
        return None


def read(directory: Path, prefix: str, name: str) -> IgnoreFile | None:
    """Read the ignore file of one directory.

    Args:
        directory: the directory that is packed.
        prefix: of the directory that the file is in, relative to `directory`, with a slash at its end, or empty.
        name: of the file.
    Returns: None if there is no such file.
    Raises: BadArchive, OSError."""
    file = directory / prefix / name
    if not file.is_file():
        return None
    with open(file, "rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadArchive(f"{prefix}{name} is longer than {MAX_BYTES} bytes")
    lines = []
    for number, line in enumerate(data.decode("utf-8-sig", errors="surrogateescape").split("\n"), start=1):
        line = line.removesuffix("\r")
        if (pattern := ignore_pattern.parse(line)) is not None:
            lines.append((number, line, pattern))
    return IgnoreFile(prefix + name, prefix, tuple(reversed(lines)))
