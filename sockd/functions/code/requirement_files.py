"""requirements.txt with the files that it names: `-r other.txt` and `-c constraints.txt`, inside the code directory.

Reads text, runs no code. Paths are relative to the file that names them, as pip's.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import NamedTuple

from sockd.base.errors import BadArchive
from sockd.functions.code.code_store import read_text
from sockd.starts.packages import requirements

MAX_BYTES = 256 * 1024
"""The most bytes of one file."""
MAX_FILES = 32
_INCLUDE = re.compile(r"\s*(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc]))(?P<path>\S[^#]*?)\s*(?:\s#.*)?")


class RequirementFiles(NamedTuple):
    """What a requirements.txt and the files that it names say."""

    text: str
    """The file's own lines, each at its number, and then those of the files that `-r` names."""
    constraints: str
    """The lines of the files that `-c` names."""


class _Reading:
    """What was read so far."""

    def __init__(self, code: Path) -> None:
        self._code = code
        self._seen: set[tuple[str, bool]] = set()
        self.lines: list[str] = []
        self.constraints: list[str] = []

    def read(self, path: str, text: str, *, is_constraint: bool) -> None:
        """Add a file's lines, and then those of the files that it names. Raises: BadArchive; ResolveFailed, BuildNeeded."""
        self._seen.add((path, is_constraint))
        if len(self._seen) > MAX_FILES:
            raise BadArchive(f"{path}: at most {MAX_FILES} files of requirements are read")
        own, named = [], []
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
            found = _INCLUDE.fullmatch(line)
            own.append("" if found else line)
            if found:
                named.append((number, found["path"].strip("\"'"), is_constraint or found[1] in ("-c", "--constraint")))
        (self.constraints if is_constraint else self.lines).extend(own)
        for number, target, is_inner_constraint in named:
            where = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if where.startswith(("/", "..")) or "://" in target:
                raise BadArchive(
                    f"{path} line {number}: {target!r} is not in the code directory; copy the file into it"
                )
            if (where, is_inner_constraint) in self._seen:
                continue
            if (inner := read_text(self._code, where, MAX_BYTES)) is None:
                raise BadArchive(f"{path} line {number}: there is no file {where!r} in the code directory")
            # An error names this file, not a line behind those of the first one.
            requirements.parse(_without_includes(inner), f"{where} line", may_have_urls=True)
            self.read(where, inner, is_constraint=is_inner_constraint)


def read(code: Path, name: str, text: str) -> RequirementFiles:
    """Follow the files that a requirements.txt names. Blocks.

    Args: code: the code directory; name: of the file in it; text: the file's.
    Raises: BadArchive for a file that is not in the directory; ResolveFailed and BuildNeeded for its lines."""
    if not any(map(_INCLUDE.fullmatch, text.splitlines())):
        return RequirementFiles(text, "")
    reading = _Reading(code)
    reading.read(name, text, is_constraint=False)
    return RequirementFiles(
        "".join(f"{line}\n" for line in reading.lines), "".join(f"{line}\n" for line in reading.constraints)
    )


def _without_includes(text: str) -> str:
    return "\n".join("" if _INCLUDE.fullmatch(line) else line for line in text.splitlines())
