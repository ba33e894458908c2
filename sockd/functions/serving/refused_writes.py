"""Refused writes: what a start could not write, by what it printed and raised, and what to do about it.

    POLICY: programs say so in the words of strerror(3) or by the name of the error, with the path next to them. A line without an
    absolute path tells nothing. A start that went on without its file is reported, too: it may fail later.

Owns nothing. Knows no program: what writes where is seen, not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_SHOWN = 3
"""Paths that are named."""
MOST_BYTES = 64 << 10
"""How much of what was printed is looked at, the end of it."""
_SAID = re.compile(r"read-only file system|\bEROFS\b|permission denied|\bEACCES\b", re.IGNORECASE)
_PATH = re.compile(r"/[^\s'\"`:;,()\[\]]+")


class Refused(NamedTuple):
    """A path, and whether a read-only file system is the reason; otherwise it is a permission."""

    path: str
    is_read_only: bool


def find(text: str) -> list[Refused]:
    """Return the paths of a text that were refused, each once, in their order; at most `MOST_SHOWN`."""
    found: dict[str, Refused] = {}
    for line in text[-MOST_BYTES:].splitlines():
        for refused in _in_line(line):
            found.setdefault(refused.path, refused)
    return list(found.values())[:MOST_SHOWN]


def _in_line(line: str) -> Iterator[Refused]:
    """The path of an error is before it in what C programs and shells say, and behind it in Python and Node."""
    before = 0
    for said in _SAID.finditer(line):
        paths = [*_PATH.finditer(line, before, said.start())][-1:] or [*_PATH.finditer(line, said.end())][:1]
        before = said.end()
        if paths:
            yield Refused(paths[0][0], said[0].lower() in ("read-only file system", "erofs"))


def advice(text: str, *, has_image: bool, writable_root: bool) -> str:
    """Return what could not be written and the remedy, without a final stop; empty: nothing is known.

    Args: text: what a start printed and raised; has_image: the function is a container image; writable_root: it may change it."""
    refused = find(text)
    read_only = [each.path for each in refused if each.is_read_only]
    denied = [each.path for each in refused if not each.is_read_only]
    said = []
    if read_only:
        remedy = "have it write to /tmp"
        if has_image and not writable_root:
            remedy = f"set writable_root = true, or {remedy}"
        said.append(f"the start could not write {', '.join(read_only)} (read-only file system): {remedy}")
    if denied:
        remedy = "have it write to /tmp"
        if has_image:
            remedy = f"make it the USER's, RUN chown or chmod, or {remedy}"
        said.append(f"the start was refused {', '.join(denied)} (permission denied): {remedy}")
    return "; ".join(said)
