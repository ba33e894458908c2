"""Which pages of its template a sandbox has written to: the template's spares copy them before anybody waits.

Owns nothing. What a first request writes to is nearly the same each time.
"""

from __future__ import annotations

import re
from pathlib import Path

MOST_RANGES = 4096
"""Rows of pages that a template is sent; the longest are kept."""
MOST_PAGES = 2048
"""The most of one spare: 8 MB, half of what its memory limit leaves it until it becomes a function."""
PAGE_BYTES = 4096
ENTRY_BYTES = 8
"""Bytes of an entry of /proc/PID/pagemap, which is one page's (proc_pid_pagemap(5))."""
OWN = re.compile(b"\x81+")
"""Entries by their highest byte: present, mapped by no other process, and of no file."""

Range = tuple[int, int]
"""The number of the first page, and how many follow each other with it."""


def written_pages(pid: int, proc: Path = Path("/proc")) -> list[Range]:
    """The pages that are a process's alone; nothing, if it has ended. Raises: OSError."""
    found: list[Range] = []
    with open(proc / str(pid) / "pagemap", "rb", buffering=0) as pagemap:
        for begin, end in private_memory((proc / str(pid) / "maps").read_text()):
            pagemap.seek(begin // PAGE_BYTES * ENTRY_BYTES)
            entries = pagemap.read((end - begin) // PAGE_BYTES * ENTRY_BYTES)
            first = begin // PAGE_BYTES
            found += [
                (first + row.start(), row.end() - row.start())
                for row in OWN.finditer(entries[ENTRY_BYTES - 1 :: ENTRY_BYTES])
            ]
    return most_useful(found)


def private_memory(maps: str) -> list[Range]:
    """Where a process may write to memory of its own, as (begin, end) of addresses: the lines of /proc/PID/maps."""
    found = []
    for line in maps.splitlines():
        place, permissions, *_ = line.split(None, 2)
        if permissions[1] == "w" and permissions[3] == "p":
            begin, _, end = place.partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def most_useful(ranges: list[Range]) -> list[Range]:
    """POLICY: of more than a spare may copy, the shortest rows: each saves a fault, and a long one is memory for few of them."""
    kept, pages = [], 0
    for each in sorted(ranges, key=lambda each: each[1])[:MOST_RANGES]:
        pages += each[1]
        if pages > MOST_PAGES:
            break
        kept.append(each)
    return sorted(kept)
