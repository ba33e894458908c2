"""Geometry of the page's charts, in per cent of the width or in units of a view box. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEAST = 0.5
"""The least width of a bar, in per cent of the whole: nothing that there is gets narrower than this."""


class Piece(NamedTuple):
    """A part of a bar; numbers are per cent of its width."""

    kind: str
    x: str
    width: str
    title: str = ""


class Tick(NamedTuple):
    """A mark of a time axis."""

    x: str
    """In per cent of the width."""
    ns: int


class Column(NamedTuple):
    """One column of a row of them, in units of the view box."""

    x: int
    y: int
    height: int


def stacked(parts: Iterable[tuple[str, float, str]], total: float) -> list[Piece]:
    """Parts one after the other: (kind, amount, title). Args: total: what the whole width stands for."""
    pieces: list[Piece] = []
    at = 0.0
    for kind, amount, title in parts:
        if amount > 0 and total > 0:
            share = min(100 * amount / total, 100 - at)
            pieces.append(Piece(kind, short(at), short(share), title))
            at += share
    return pieces


def span(kind: str, start: float, end: float, total: float, title: str = "") -> Piece:
    """From one moment to another on an axis that begins at 0; a moment is a thin piece."""
    if total <= 0:
        return Piece(kind, "0", "100", title)
    x = min(max(100 * start / total, 0.0), 100 - LEAST)
    width = min(max(100 * (end - start) / total, LEAST), 100 - x)
    return Piece(kind, short(x), short(width), title)


def ticks(total_ns: int) -> list[Tick]:
    """The marks of an axis from 0 to `total_ns`: at most six, at multiples of 1, 2 or 5 times a power of ten."""
    step = next(
        multiple * 10**power for power in range(19) for multiple in (1, 2, 5) if multiple * 10**power * 5 >= total_ns
    )
    return [Tick(short(100 * at / total_ns), at) for at in range(0, total_ns + 1, step)] if total_ns > 0 else []


def column_path(values: Sequence[float], most: float, *, height: int, width: int) -> str:
    """Values side by side as one path, each `width` wide with a gap of one unit; what there is is at least one unit high.

    Args: most: what is as high as `height`."""
    heights = [max(round(height * value / most), 1) if value > 0 else 0 for value in values]
    places = [(place * width, high) for place, high in enumerate(heights) if high]
    return "".join(f"M{x} {height}v-{high}h{width - 1}v{high}z" for x, high in places)


def columns(values: Sequence[float], *, height: int, width: int) -> list[Column]:
    """Values side by side, each `width` wide, the greatest as high as `height`; the least that there is is seen."""
    most = max(values, default=0.0)
    if most <= 0:
        return []
    heights = [max(round(height * value / most), 1) if value > 0 else 0 for value in values]
    return [Column(place * width, height - high, high) for place, high in enumerate(heights) if high]


def short(number: float) -> str:
    """A number without digits that do not show."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
