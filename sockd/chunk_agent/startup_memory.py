"""The startup data of one image in memory, for the agent: the first segment when the image is opened, the others while it starts.

The daemon decrypts, as whoever has the key of the segments could make others that fit.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

from sockd.chunk_agent.memory_file import file_by_mapping
from sockd.chunk_agent.profile import OpenProfile
from sockd.chunk_agent.segments import Segments
from sockd.plain.blocking import in_thread


class StartupMemory:
    """`of`, then `fill` until `is_full`, one call at a time; `close` at any time, once.

    Owns the memfd, and until it is full or closed a mapping of it and a descriptor of the profile."""

    def __init__(self, segments: Segments, profile_file: int, file: int, mapped: mmap.mmap) -> None:
        self.file = file
        """The memfd."""
        self.filled = 0
        """So many bytes of it are there."""
        self._segments = segments
        self._next = 0
        self._profile_file = profile_file
        self._mapped: mmap.mmap | None = mapped
        self._is_filling = self._is_closed = False

    @classmethod
    async def of(cls, profile: OpenProfile) -> Self | None:
        """With the first segment; None: the profile has no startup data. Raises: Tampered; OSError."""
        segments = profile.segments
        if segments is None:
            return None
        profile_file = os.dup(profile.file.fileno())
        try:
            memory = cls(segments, profile_file, *file_by_mapping("startup data", segments.size))
        except BaseException:
            os.close(profile_file)
            raise
        try:
            await memory.fill(1)
        except BaseException:
            memory.close()
            raise
        return memory

    @property
    def is_full(self) -> bool:
        return self._next == self._segments.count

    async def fill(self, most: int) -> None:
        """Decrypt so many segments more, as far as there are. Raises: Tampered; OSError."""
        self._is_filling = True
        try:
            await in_thread(self._fill, most)
        finally:
            self._is_filling = False
            if self.is_full or self._is_closed:
                self._end_filling()

    def close(self) -> None:
        """Close the memfd; what fills it ends soon."""
        os.close(self.file)
        self._is_closed = True
        if not self._is_filling:
            self._end_filling()

    def _fill(self, most: int) -> None:
        assert self._mapped is not None
        with memoryview(self._mapped) as data:
            for number in range(self._next, min(self._next + most, self._segments.count)):
                place = self._segments.place(number)
                with data[place] as piece:
                    self._segments.read_into(self._profile_file, number, piece)
                self.filled, self._next = place.stop, number + 1

    def _end_filling(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()
            os.close(self._profile_file)
