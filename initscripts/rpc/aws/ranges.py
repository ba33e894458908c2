"""Byte ranges: how an object is cut for parallel requests, and what a Content-Range says. Pure; owns the rules only."""

from __future__ import annotations

import re
from typing import NamedTuple

_CONTENT_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")


class Range(NamedTuple):
    """From `start` to before `end`, in bytes."""

    start: int
    end: int

    @property
    def header(self) -> str:
        """As a request says it: the last byte is in."""
        return f"bytes={self.start}-{self.end - 1}"


class ContentRange(NamedTuple):
    """What a 206 says of itself."""

    range: Range
    total: int


def parse_content_range(text: str) -> ContentRange | None:
    """None if it is not a range of bytes with a total."""
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        return None
    first, last, total = map(int, match.groups())
    return ContentRange(Range(first, last + 1), total) if first <= last < total else None


def split(first_bytes: int, total: int, *, parts: int, part_bytes: int) -> list[Range]:
    """POLICY: the ranges behind the first, which is on its way already.

    As many as there may be requests besides the first one, of equal size, since all begin at the same time and the slowest
    decides; fewer if they were smaller than is worth a request. Starts are multiples of 4 KiB."""
    rest = total - first_bytes
    count = max(1, min(parts - 1, rest // part_bytes))
    size = -(-rest // count // 4096) * 4096
    return [Range(start, min(start + size, total)) for start in range(first_bytes, total, size)]
