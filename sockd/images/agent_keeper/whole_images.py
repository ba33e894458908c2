"""Whole images in the agent's directory, for a host on which images are not read on demand: each is written once, by the agent.

Owns the locks that keep two starts from writing one image at the same time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from sockd.base.errors import StorageFull
from sockd.images.agent import agent_wire as wire
from sockd.images.agent_keeper.agent_directory import AgentDirectory
from sockd.images.agent_keeper.agent_keeper import AgentKeeper, OpenedImage

NOT_ON_DEMAND = "images.on_demand is off"


class WholeImages:
    """The files of whole images, by image."""

    def __init__(self, directory: AgentDirectory) -> None:
        self._directory = directory
        self._writing: dict[str, asyncio.Lock] = {}

    async def file(self, keeper: AgentKeeper, opened: OpenedImage, size_bytes: int, why_whole: str) -> Path:
        """A file with the whole image, written by the agent unless it is there.

        Args: why_whole: why it is not read on demand, for the words of an error. Raises: StorageFull; as `AgentKeeper.ask`."""
        async with self._writing.setdefault(opened.image, asyncio.Lock()):
            found = self._directory.whole(opened.image, size_bytes)
            if found is None:
                try:
                    with self._directory.written(opened.image) as file:
                        await keeper.ask(
                            lambda number: wire.Write(number, opened.image, opened.root),
                            lambda: (opened.table, file),
                            takes_long=True,
                        )
                except StorageFull as error:
                    raise StorageFull(_room_words(size_bytes, why_whole)) from error
                found = self._directory.whole(opened.image, size_bytes)
            assert found is not None
            return found


def _room_words(size_bytes: int, why_whole: str) -> str:
    """What to do about a disk that has no room for a whole image."""
    remedy = ", or set images.on_demand = true" if why_whole == NOT_ON_DEMAND else ""
    return (
        f"an image of {size_bytes >> 20} MB is written to it before its first start ({why_whole}): free some of it, "
        f"remove functions (sockd rm NAME) and images that none needs (sockd images gc){remedy}"
    )
