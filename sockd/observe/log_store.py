"""Logs on disk: what functions printed, kept over restarts, bounded by bytes.

    000017.log    frames, one after the other (`log_segments`)

Owns the directory, the file that is being written and the thread that writes. Only the newest segment is appended to. When there
is too much, the functions that keep most lose their oldest records: their segments are written again without these, or deleted.
Too much is also more than half of what the disk has for logs, so that a deploy finds room on a disk that others have filled.
Written means handed to the kernel: a killed daemon loses nothing that was answered, a host that loses its power the last
seconds. A frame that is not whole ends its segment, for every reader; each start begins a new one. A removed function leaves a
frame that says so, and what is older than that is not its successor's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sockd.base.telemetry import LogRecord
from sockd.observe import log_segments
from sockd.observe.log_segments import Body

SEGMENTS = 8
"""Into how many the space is divided: so much of it is freed at a time."""
MANY_FILES = 32
"""From so many on, neighbours that fit into one are joined: restarts and freed space leave small ones."""
FINDS = 3
"""How often a search begins, if space is freed meanwhile."""
PENDING_BYTES = 16 << 20
"""What waits to be written; a disk that is behind by more loses records, which are counted."""
PATIENCE_S = 1.0
"""How long an answer waits for its log: a disk that is slower delays no one for longer."""
FRAMES_AT_ONCE = 1000
"""How many a reader looks at in one step of the loop."""
_log = logging.getLogger(__name__)


class LogStore:
    """`append` waits until a record is written; `find` reads."""

    def __init__(self, directory: Path, keep_bytes: int) -> None:
        """Begin a segment. Args: directory: made, if it is not there; keep_bytes: of all segments. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._keep_bytes = keep_bytes
        self._budget_bytes = keep_bytes
        """How much all segments may have, as the disk was when the newest began or could not be written."""
        sizes = {int(path.stem): path.stat().st_size for path in directory.glob("[0-9]*.log")}
        for left in (*directory.glob("*.new"), *(self._path(number) for number, size in sizes.items() if not size)):
            left.unlink(missing_ok=True)
        self._sizes = {number: size for number, size in sorted(sizes.items()) if size}
        """The sizes of the segments, by number, oldest first."""
        self._shares: dict[int, Counter[int]] = {}
        """For the older segments that were examined, how many bytes are each function's."""
        self._rewrites = 0
        """How often space was freed."""
        self._fd = -1
        self._has_failed = False
        """Whether the newest segment may end with a part of a frame, which would hide what came behind it."""
        self._begin()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._batch: asyncio.Future[None] | None = None
        """Done when what is pending now is written."""
        self._writing: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, "log-store")
        self.lost = 0
        """Records that could not be written, or that may not have been written in time."""

    async def append(self, record: LogRecord) -> None:
        """Write a record; returns when that is done, or, on a disk that does not keep up, after a while."""
        written = self.write(record)
        if written is not None:
            await asyncio.wait([written], timeout=PATIENCE_S)

    def write(self, record: LogRecord) -> asyncio.Future[None] | None:
        """Have a record written; done then. None: it is lost, as there is too much before it, or the store is closed."""
        return self._push(
            Body(record.function, record.request_id, record.time_s, record.version, record.text, record.dropped_bytes)
        )

    def forget(self, name: str) -> None:
        """Drop what a removed function has printed."""
        self._push(Body(name, ""))

    async def find(
        self, name: str, *, request_id: str = "", since_s: float = 0.0, limit: int | None = None
    ) -> list[LogRecord]:
        """The newest records of a function, oldest of them first.

        Args: request_id: only those whose id begins so; since_s: Unix time; limit: most records, None is all."""
        if self._batch is not None:
            await asyncio.wait([self._batch], timeout=PATIENCE_S)
        for _ in range(FINDS):
            rewrites = self._rewrites
            found = await self._found(name, request_id, since_s, limit)
            if rewrites == self._rewrites:
                break
        return found if limit is None else found[len(found) - min(limit, len(found)) :]

    async def _found(self, name: str, request_id: str, since_s: float, limit: int | None) -> list[LogRecord]:
        """At least as many of the newest records as are wanted, or all."""
        found: list[LogRecord] = []
        for number in sorted(self._sizes, reverse=True):
            records: list[LogRecord] = []
            was_forgotten = False
            async for body in self._bodies(number, name):
                if not body.request_id:
                    was_forgotten = True
                    records.clear()
                elif body.time_s >= since_s and body.request_id.startswith(request_id):
                    records.append(_record(body))
            found = records + found
            if was_forgotten or (limit is not None and len(found) >= limit):
                break
        return found

    async def aclose(self) -> None:
        """Write what is pending, and let go of the file. What comes afterwards is lost."""
        while self._writing is not None:  # what comes when one has just ended begins another
            await self._writing
        self._executor.shutdown()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    async def _bodies(self, number: int, name: str) -> AsyncIterator[Body]:
        """What one segment holds of a function; other requests have the loop in between."""
        data = await asyncio.get_running_loop().run_in_executor(self._executor, self._read, number)
        for step, body in enumerate(log_segments.bodies(data, name), start=1):
            if body is not None:
                yield body
            if step % FRAMES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _read(self, number: int) -> bytes:
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:  # deleted since it was listed
            return b""

    # -- writing

    def _push(self, body: Body) -> asyncio.Future[None] | None:
        """Have a frame written. None: it is lost, as there is too much before it, or the store is closed."""
        frame = log_segments.frame(body)
        if self._fd < 0 or self._pending_bytes + len(frame) > PENDING_BYTES:
            self.lost += 1
            return None
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._batch is None:
            self._batch = asyncio.get_running_loop().create_future()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return self._batch

    async def _write_all(self) -> None:
        """Write batch by batch, as long as there is something: what comes during one batch is the next."""
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                frames, self._pending, self._pending_bytes = self._pending, [], 0
                batch, self._batch = self._batch, None
                try:
                    await loop.run_in_executor(self._executor, self._write, frames)
                except OSError as error:
                    self.lost += len(frames)
                    _log.warning("logs are lost: %s", error)
                if batch is not None:
                    batch.set_result(None)
        finally:
            self._writing = None

    def _write(self, frames: list[bytes]) -> None:
        """In the thread. Raises: OSError."""
        if sum(self._sizes.values()) > self._budget_bytes or len(self._sizes) > 2 * MANY_FILES:
            self._make_room()
        newest_bytes = self._sizes[next(reversed(self._sizes))]
        if newest_bytes > self._segment_bytes or (self._has_failed and newest_bytes):
            self._begin()
        number = next(reversed(self._sizes))
        data = memoryview(b"".join(frames))
        self._has_failed = False
        try:
            while data:
                written = os.write(self._fd, data)
                self._sizes[number] += written
                data = data[written:]
        except OSError:
            self._has_failed = True
            self._look_at_disk()
            raise

    @property
    def _segment_bytes(self) -> int:
        """From how many on a segment is followed by the next."""
        return max(self._budget_bytes // SEGMENTS, 1)

    def _look_at_disk(self) -> None:
        """POLICY: logs keep `keep_bytes`, and no more than they leave free."""
        disk = os.fstatvfs(self._fd)
        held_bytes = sum(self._sizes.values())
        self._budget_bytes = min(self._keep_bytes, (held_bytes + disk.f_bavail * disk.f_frsize) // 2)

    def _begin(self) -> None:
        """The next segment. Raises: OSError."""
        number = next(reversed(self._sizes), 0) + 1
        fd = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._sizes = {**self._sizes, number: 0}  # in one step, as the loop reads it
        self._look_at_disk()

    def _make_room(self) -> None:
        """Free a segment's space: the functions that keep most lose their oldest records. In the thread. Raises: OSError."""
        *older, newest = self._sizes
        held = log_segments.shares(self._read(newest))
        for number in older:
            if number not in self._shares:
                self._shares[number] = log_segments.shares(self._read(number))
            held.update(self._shares[number])
        share = log_segments.fair_share(held.values(), self._segment_bytes * (SEGMENTS - 1))
        excess = Counter({name: size - share for name, size in held.items() if size > share})
        self._rewrites += 1
        before = -1
        """The number of the segment before, if this one may be joined to it."""
        for number in older:
            losing = [name for name in self._shares[number] if excess[name] > 0]
            joins = before >= 0 and self._sizes[before] + self._sizes[number] <= self._segment_bytes
            if losing or joins:
                kept = log_segments.without(self._read(number), excess)
                # The frames alone: after one that is not whole, readers would not find those that are joined to it.
                first = log_segments.without(self._read(before), Counter()) if joins else b""
                self._replace(number, first + kept)
                if joins:
                    self._replace(before, b"")
            before = number if len(older) > MANY_FILES and number in self._sizes else -1

    def _replace(self, number: int, data: bytes) -> None:
        """Have a segment hold these frames instead; without any, or on a full disk, it is deleted. Raises: OSError."""
        path = self._path(number)
        new = path.with_suffix(".new")
        try:
            new.write_bytes(data)
            new.chmod(0o600)
        except OSError as error:
            _log.warning("logs are lost: %s", error)
            data = b""
        if data:
            new.replace(path)
            self._sizes = {**self._sizes, number: len(data)}
            self._shares[number] = log_segments.shares(data)
        else:
            new.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            self._sizes = {each: size for each, size in self._sizes.items() if each != number}
            self._shares.pop(number, None)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06}.log"


def _record(body: Body) -> LogRecord:
    return LogRecord(body.request_id, body.time_s, body.text, body.dropped_bytes, body.function, body.version)
