"""Selection: which files of a directory are packed, and why the others are not.

    .sockdignore (deepest first) ─► secrets ─► .gitignore (deepest first) ─► what no function needs

The first of these that has a verdict about a path decides. A directory that is left out is not entered, so nothing in it can be
included again, as in git. Ignore files above the packed directory are not read: what is packed depends on the directory alone.

A symbolic link is packed as what it points to, if that is in the directory: an archive may not hold links (`archive`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sockd.base.errors import BadArchive
from sockd.functions.code import ignore_file, left_out
from sockd.functions.code.archive import BYTECODE, checked_path
from sockd.functions.code.ignore_file import IgnoreFile

SOCKDIGNORE, GITIGNORE = ".sockdignore", ".gitignore"
SECRET = "may be a secret"
JAVASCRIPT = "JavaScript packages"


@dataclass(frozen=True, slots=True)
class Selected:
    """One file or directory that is packed."""

    path: str
    """Relative to the packed directory; that of a directory ends with a slash."""
    mode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One file or directory that is not packed; what is in such a directory is not listed."""

    path: str
    """As in `Selected`."""
    reason: str
    is_secret: bool = False
    by_git: bool = False
    """Whether a pattern of a .gitignore decided."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files and directories of one directory, each list sorted by path."""

    packed: tuple[Selected, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.packed)


def select(directory: Path, *, only: Sequence[str] | None = None, max_entries: int) -> Selection:
    """Select what is packed. Blocks.

    Args:
        directory: its files are not read, except ignore files and, for private keys, the beginning of small ones.
        only: names at the top of the directory; these are packed whatever the rules say, and nothing else. None: all.
        max_entries: most files and directories that are packed.
    Raises: BadArchive for links that leave the directory, devices, invalid names and too many files; OSError."""
    walk = _Walk(directory, only)
    packed: list[Selected] = []
    for each in walk.entries("", ()):
        packed.append(each)
        if len(packed) > max_entries:
            raise BadArchive(
                f"{directory} holds more than {max_entries} files and directories (code.max_files in the worker's "
                f"configuration); most are in {_fullest(packed)}. Name what the function does not need in {SOCKDIGNORE}"
            )
    return Selection(tuple(sorted(packed, key=lambda each: each.path)), tuple(walk.left_out))


def is_packed(directory: Path, path: Path) -> bool:
    """Whether a change of this file may change what is packed. Never raises for a path that is gone.

    Args: path: relative to the directory."""
    if path.name in (SOCKDIGNORE, GITIGNORE):
        return True
    walk = _Walk(directory, None)
    prefix = ""
    rules: Rules = ()
    for number, part in enumerate(path.parts, start=1):
        is_directory = number < len(path.parts) or (directory / path).is_dir()
        try:
            rules = walk.rules(prefix, rules)
            if walk.why_left_out(prefix + part + "/" * is_directory, rules):
                return False
        except (BadArchive, OSError):
            return True  # packing will say what is wrong
        prefix += f"{part}/"
    return True


Rules = tuple[tuple[IgnoreFile | None, IgnoreFile | None], ...]
"""The .sockdignore and .gitignore of a directory and of those above it, the deepest first."""


class _Walk:
    """One pass over a directory, with what it has left out so far."""

    def __init__(self, directory: Path, only: Sequence[str] | None) -> None:
        self.left_out: list[LeftOut] = []
        self._directory = directory
        self._real = os.path.realpath(directory)
        self._only = only
        # A program of the function's own may be one for node.
        self._has_javascript = (directory / "bootstrap").is_file()

    def entries(self, prefix: str, above: Rules) -> Iterator[Selected]:
        """Yield what is packed of a directory; note what is not."""
        rules = self.rules(prefix, above)
        for item in sorted(os.scandir(self._directory / prefix), key=lambda item: item.name):
            is_named = not prefix and self._only is not None
            if is_named and item.name not in (self._only or ()):
                continue
            shown = prefix + item.name + "/" * (is_directory := _is_directory(item))
            if left := self.why_left_out(shown, rules, is_named=is_named):
                self.left_out.append(left)
                continue
            _check_name(prefix + item.name)
            if item.is_symlink() and self._is_secret_link(prefix + item.name, item, is_directory=is_directory):
                self.left_out.append(LeftOut(shown, SECRET, is_secret=True))
            elif is_directory:
                yield Selected(shown, stat.S_IFDIR | 0o755, 0)
                yield from self.entries(shown, rules)
            elif stat.S_ISREG((found := item.stat()).st_mode):
                yield Selected(shown, stat.S_IFREG | (0o755 if found.st_mode & 0o111 else 0o644), found.st_size)
            else:
                raise BadArchive(f"{shown!r} is a device, pipe or socket; only files and directories are deployed")

    def rules(self, prefix: str, above: Rules) -> Rules:
        """Return the rules inside a directory, of which `above` are those of the directories above it."""
        own, git = (ignore_file.read(self._directory, prefix, name) for name in (SOCKDIGNORE, GITIGNORE))
        return ((own, git), *above) if own or git else above

    def why_left_out(self, path: str, rules: Rules, *, is_named: bool = False) -> LeftOut | None:
        """Return why a path is left out; None if it is packed.

        Args: path: of a directory, with a slash at its end; is_named: by the user, so that no rule holds."""
        file, is_directory = self._directory / path, path.endswith("/")
        if file.name == BYTECODE:
            return LeftOut(path, left_out.not_needed(file, is_directory=is_directory))
        if is_named:
            return None
        if (verdict := _verdict([own for own, _ in rules], path)) is not None:
            return LeftOut(path, verdict[1]) if verdict[0] else None
        if left_out.is_secret_name(file.name, is_directory=is_directory) or (
            file.is_file() and left_out.is_secret_file(file)
        ):
            return LeftOut(path, SECRET, is_secret=True)
        if (verdict := _verdict([git for _, git in rules], path)) is not None:
            return LeftOut(path, verdict[1], by_git=True) if verdict[0] else None
        reason = left_out.not_needed(file, is_directory=is_directory)
        is_needed = not reason or (reason == JAVASCRIPT and self._has_javascript)
        return None if is_needed else LeftOut(path, reason)

    def _is_secret_link(self, path: str, item: os.DirEntry[str], *, is_directory: bool) -> bool:
        """Whether a link leads to a secret. Raises: BadArchive unless it leads to something that can be packed in its place."""
        target = os.path.realpath(item.path)
        words = f"{path!r} is a link to {os.readlink(item.path)!r}"
        fix = f"or name {path!r} in {SOCKDIGNORE}"
        if not os.path.exists(target):
            raise BadArchive(f"{words}, which does not exist; remove the link, {fix}")
        if os.path.commonpath([target, self._real]) != self._real:
            raise BadArchive(f"{words}, outside of the directory; copy what it points to to its place, {fix}")
        around = os.path.realpath(os.path.dirname(item.path))
        if is_directory and os.path.commonpath([target, around]) == target:
            raise BadArchive(f"{words}, a directory that the link is in; remove the link, {fix}")
        inside = os.path.relpath(target, self._real).split(os.sep)
        if any(left_out.is_secret_name(part, is_directory=True) for part in inside):
            return True
        return not is_directory and (
            left_out.is_secret_name(inside[-1], is_directory=False) or left_out.is_secret_file(Path(target))
        )


def _verdict(files: Sequence[IgnoreFile | None], path: str) -> tuple[bool, str] | None:
    verdicts = (file.verdict(path) for file in files if file is not None)
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _is_directory(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link to itself
        return False


def _check_name(path: str) -> None:
    try:
        checked_path(path)
    except UnicodeEncodeError:
        raise BadArchive(f"the name {path!r} is not UTF-8") from None


def _fullest(entries: Sequence[Selected]) -> str:
    """Return the directory at the top, or ".", that holds most of these."""
    tops = [each.path.partition("/")[0] + "/" if "/" in each.path else "." for each in entries]
    return max(sorted(set(tops)), key=tops.count)
