"""Boards: the live parts of one page, rendered when their values change, once for all viewers.

Owns the HTML of its parts. Values are the displayed strings, so every change is visible.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sockd.http.page.rendering import Rendering

Values = dict[str, Any]


class Part(NamedTuple):
    """One live part: its name, which is its template's and its event's, and what gives its values."""

    name: str
    values: Callable[[], Values]


class Fragment(NamedTuple):
    """A part as HTML, and a short name of that very text."""

    html: str
    digest: str


class Board:
    """The parts of one page, of one worker or of one function."""

    def __init__(self, rendering: Rendering, parts: Sequence[Part]) -> None:
        self._rendering = rendering
        self._parts = parts
        self._values: dict[str, Values] = {}
        self._fragments: dict[str, Fragment] = {}
        self._refreshing = asyncio.Lock()
        self.viewers = 0

    async def refresh(self) -> dict[str, Fragment]:
        """All parts as they are now, by name. Raises: whatever the values do, such as NoSuchFunction."""
        async with self._refreshing:
            for part in self._parts:
                values = part.values()
                if values != self._values.get(part.name):
                    html = await self._rendering.render(f"parts/{part.name}.html", values)
                    self._fragments[part.name] = Fragment(html, digest_of(html))
                    self._values[part.name] = values
                await asyncio.sleep(0)
            return dict(self._fragments)


def digest_of(html: str) -> str:
    """Eight letters that two texts hardly share."""
    return hashlib.blake2b(html.encode(), digest_size=4).hexdigest()
