"""The startup data of one image in memory, for the agent: the first segment when the image is opened, the others while it starts.

The daemon decrypts, because a process that has the key of the segments could make others that fit. Data that was recorded of
another image is made this one's in the first segment, which has its table.
"""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from typing import Self

from sockd.base.blocking import in_thread_of
from sockd.images.profiles.profile import OpenProfile
from sockd.images.profiles.segments import Segments
from sockd.images.profiles.startup_data import StartupData, move
from sockd.images.profiles.startup_room import StartupRoom
from sockd.linux.memory_file import file_by_mapping


class StartupMemory:
    """`of`, then `fill` until `is_full`, one call at a time; `close` at any time, once.

    Owns its place in the room, the memfd, and until it is full or closed a mapping of it and a descriptor of the profile. One
    thread fills and releases them, one after the other: to free 64 MB takes the kernel up to 25 ms."""

    def __init__(
        self,
        profile: OpenProfile,
        segments: Segments,
        profile_file: int,
        file: int,
        mapped: mmap.mmap,
        room: StartupRoom,
    ) -> None:
        self.recorded_of = profile.image
        """The image whose profile this is."""
        self.file = file
        """The memfd; closed soon after `close`."""
        self.filled = 0
        """So many bytes of it are there."""
        self._segments = segments
        self._places = profile.places
        self._next = 0
        self._profile_file = profile_file
        self._mapped: mmap.mmap | None = mapped
        self._room = room
        self._is_released = False

    @classmethod
    async def of(cls, profile: OpenProfile, room: StartupRoom) -> Self | None:
        """With the first segment; None: the profile has no startup data. Raises: NoStartupRoom; Tampered; OSError."""
        segments = profile.segments
        if segments is None:
            return None
        with ExitStack() as stack:
            room.take(segments.size)
            stack.callback(room.give_back, segments.size)
            profile_file = os.dup(profile.file.fileno())
            stack.callback(os.close, profile_file)
            memory = cls(profile, segments, profile_file, *file_by_mapping("startup data", segments.size), room)
            stack.pop_all()
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
        """Decrypt so many segments more, as far as there are, unless it was closed. Raises: Tampered; OSError."""
        await in_thread_of(self._room.thread, self._fill, most)

    async def data(self, image_bytes: int) -> StartupData | None:
        """All of it, for the daemon to read; None: it is not full, or was closed. Raises: Tampered; OSError."""
        return await in_thread_of(self._room.thread, self._data, image_bytes)

    def close(self) -> None:
        """Release everything, after a `fill` that is under way."""
        self._room.give_back(self._segments.size)
        self._room.thread.submit(self._release)

    def _fill(self, most: int) -> None:
        if self._mapped is None:
            return
        with memoryview(self._mapped) as data:
            for number in range(self._next, min(self._next + most, self._segments.count)):
                place = self._segments.place(number)
                # Without memory this fails; where the host promises more than it has, a write would be a SIGBUS.
                os.posix_fallocate(self.file, place.start, place.stop - place.start)
                with data[place] as piece:
                    self._segments.read_into(self._profile_file, number, piece)
                if number == 0 and self._places is not None:
                    with data[place] as piece:
                        move(piece, self._places)
                self.filled, self._next = place.stop, number + 1
        if self.is_full:
            self._end_filling()

    def _data(self, image_bytes: int) -> StartupData | None:
        if self._is_released or not self.is_full:
            return None
        return StartupData.open(self.file, image_bytes, self.filled)

    def _release(self) -> None:
        self._is_released = True
        self._end_filling()
        os.close(self.file)

    def _end_filling(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()
            os.close(self._profile_file)
