"""The rest of the images, fetched while nothing else is: one chunk at a time, at a bounded rate, as long as the cache has room.

Owns a thread. POLICY: it begins when no read has waited for a chunk for `IDLE_S`, and pauses whenever one does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sockd.images.agent.chunk_fetches import ChunkFetches, ChunkSource, Urgency
from sockd.images.agent.open_image import OpenImage
from sockd.images.chunks.chunk import CHUNK_BYTES

IDLE_S = 2.0


class BackgroundFill:
    """`close` waits for the thread."""

    def __init__(
        self, source: ChunkSource, fetches: ChunkFetches, images: Callable[[], list[OpenImage]], bytes_s: int
    ) -> None:
        """Args: bytes_s: most in a second, above 0."""
        self._source = source
        self._fetches = fetches
        self._images = images
        self._period_s = CHUNK_BYTES / bytes_s
        self._closing = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="background fill", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """There is another image."""
        self._changed.set()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._changed.set()
        self._thread.join()

    def _fill(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            for image in self._images():
                self._fill_one(image)

    def _fill_one(self, image: OpenImage) -> None:
        contents = image.contents
        for chunk in contents.chunks:
            if chunk is None or self._source.has(chunk.name):
                continue
            while (idle_s := time.monotonic() - self._fetches.last_read_s) < IDLE_S or self._fetches.waiting:
                if self._closing.wait(max(IDLE_S - idle_s, self._period_s)):
                    return
            if not self._source.has_room() or image not in self._images():
                return
            self._fetches.want(contents.root, chunk.name, Urgency.FILL)
            if self._closing.wait(self._period_s):
                return
