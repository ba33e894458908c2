"""Memory that was freed returns to the kernel: measured in processes of their own, whose heaps nobody else uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sockd.linux import allocator
from sockd.linux.allocator import HeapTrim

HOLDS = """
from sockd.linux.allocator import HeapTrim, return_large_blocks, resident_bytes

def fill(size, count):
    return [b"x" * size for _ in range(count)]

def kept(blocks):
    global pinned
    held = resident_bytes()
    del blocks[1:-1]
    pinned = blocks
    return (resident_bytes() - idle) >> 20, (held - idle) >> 20
"""


def said(program: str) -> list[int]:
    """What a program with `HOLDS` before it prints: numbers."""
    run = subprocess.run([sys.executable, "-c", HOLDS + program], capture_output=True, text=True, check=True)
    return [int(word) for word in run.stdout.split()]


def test_large_blocks_return_although_larger_ones_were_freed_before() -> None:
    freed = "large = b'x' * (30 << 20); del large\nidle = resident_bytes()\nprint(*kept(fill(200_000, 400)))"
    left, held = said(f"return_large_blocks()\n{freed}")
    assert held > 70 and left < 4
    left, _ = said(freed)
    assert left > 60, "this C library does not keep them: `return_large_blocks` is not needed"


def test_a_trim_returns_small_blocks_from_the_middle_of_the_heap() -> None:
    left, held, due_before, due, left_then, due_then = said(
        "trim = HeapTrim()\nidle = resident_bytes()\nbefore = trim.is_due()\nprint(*kept(fill(8000, 10_000)))\n"
        "due = trim.is_due()\ntrim.trim()\nprint(int(before), int(due), (resident_bytes() - idle) >> 20, int(trim.is_due()))"
    )
    assert held > 70 and left > 60
    assert (due_before, due, due_then) == (0, 1, 0) and left_then < 4


def test_a_trim_is_due_after_growth_and_after_a_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    size = [100 << 20]
    monkeypatch.setattr(allocator, "resident_bytes", lambda: size[0])
    trim = HeapTrim()
    seen = []
    for megabytes in (115, 116, 84, 85):
        size[0] = megabytes << 20
        seen.append(trim.is_due())
    assert seen == [False, True, True, False]
