"""Logs on disk: what functions printed, kept over restarts, bounded by bytes.

    000017.log    frames, one after the other:
                  magic 4, length of the body 4, CRC-32 of the body 4, CRC-32 of the function's name 4; the body, msgpack

Owns the directory, the file that is being written and the thread that writes. A segment is only ever appended to, and the
oldest is deleted when there are too many. Written means handed to the kernel: a killed daemon loses nothing that was
answered, a host that loses its power the last seconds. A frame that is not whole ends its segment, for every reader; each
start begins a new one. A removed function leaves a frame that says so, and what is older than that is not its successor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import msgspec

from sockd.plain.telemetry import LogRecord

SEGMENTS = 8
"""Into how many the space is divided: so much of it is given back at a time."""
MAX_FILES = 256
"""A worker that is restarted again and again would else leave many small ones."""
PENDING_BYTES = 16 << 20
"""What waits to be written; a disk that is behind by more loses records, which are counted."""
PATIENCE_S = 1.0
"""How long an answer waits for its log: a disk that is slower delays no one for longer."""
FRAMES_AT_ONCE = 1000
"""How many a reader looks at in one step of the loop."""
_HEADER = struct.Struct("<4sIII")
_MAGIC = b"slg1"
_log = logging.getLogger(__name__)


class _Body(msgspec.Struct, array_like=True):
    function: str
    request_id: str
    """Empty: the function was removed."""
    time_s: float = 0.0
    version: str = ""
    text: bytes = b""
    dropped_bytes: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


class LogStore:
    """`append` waits until a record is written; `find` reads."""

    def __init__(self, directory: Path, keep_bytes: int) -> None:
        """Begin a segment. Args: directory: made, if it is not there; keep_bytes: of all segments. Raises: OSError."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self._segment_bytes = max(keep_bytes // SEGMENTS, 1)
        sizes = {int(path.stem): path.stat().st_size for path in directory.glob("[0-9]*.log")}
        self._sizes = dict(sorted(sizes.items()))
        """Of the segments, by number, oldest first."""
        self._fd = -1
        self._begin()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._batch: asyncio.Future[None] | None = None
        """Done when what is pending now is written."""
        self._writing: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, "log-store")
        self.lost = 0
        """Records that could not be written, or not in time to be told apart from that."""

    async def append(self, record: LogRecord) -> None:
        """Write a record; returns when that is done, or, on a disk that does not keep up, after a while."""
        written = self.write(record)
        if written is not None:
            await asyncio.wait([written], timeout=PATIENCE_S)

    def write(self, record: LogRecord) -> asyncio.Future[None] | None:
        """Have a record written; done then. None: it is lost, as there is too much before it."""
        return self._push(
            _Body(record.function, record.request_id, record.time_s, record.version, record.text, record.dropped_bytes)
        )

    def forget(self, name: str) -> None:
        """A function was removed: what it printed is nobody's any more."""
        self._push(_Body(name, ""))

    async def find(
        self, name: str, *, request_id: str = "", since_s: float = 0.0, limit: int | None = None
    ) -> list[LogRecord]:
        """The newest records of a function, oldest of them first.

        Args: request_id: only those whose id begins so; since_s: Unix time; limit: most records, None is all."""
        if self._batch is not None:
            await asyncio.wait([self._batch], timeout=PATIENCE_S)
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
        return found if limit is None else found[len(found) - min(limit, len(found)) :]

    async def aclose(self) -> None:
        """Write what is pending, and let go of the file."""
        if self._writing is not None:
            await self._writing
        self._executor.shutdown()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    async def _bodies(self, number: int, name: str) -> AsyncIterator[_Body]:
        """What one segment holds of a function; other requests have the loop in between."""
        data = await asyncio.get_running_loop().run_in_executor(self._executor, self._read, number)
        for step, body in enumerate(bodies(data, name), start=1):
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

    def _push(self, body: _Body) -> asyncio.Future[None] | None:
        """Have a frame written. None: it is lost, as there is too much before it."""
        encoded = _encode(body)
        frame = _HEADER.pack(_MAGIC, len(encoded), crc32(encoded), crc32(body.function.encode())) + encoded
        if self._pending_bytes + len(frame) > PENDING_BYTES:
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
        number = next(reversed(self._sizes))
        if self._sizes[number] > self._segment_bytes:
            self._begin()
            number += 1
        data = memoryview(b"".join(frames))
        while data:
            written = os.write(self._fd, data)
            self._sizes[number] += written
            data = data[written:]

    def _begin(self) -> None:
        """The next segment, and as many old ones less as make up for it. Raises: OSError."""
        number = next(reversed(self._sizes), 0) + 1
        fd = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        sizes = {**self._sizes, number: 0}
        while len(sizes) > 1 and (len(sizes) > MAX_FILES or sum(sizes.values()) > self._segment_bytes * (SEGMENTS - 1)):
            oldest = next(iter(sizes))
            with contextlib.suppress(FileNotFoundError):
                self._path(oldest).unlink()
            del sizes[oldest]
        self._sizes = sizes  # in one step, as the loop reads it

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06}.log"


def bodies(data: bytes, name: str) -> Iterator[_Body | None]:
    """The frames of a segment, as far as they are whole: those of one function, and None for every other."""
    wanted, at, end = crc32(name.encode()), 0, len(data)
    while at + _HEADER.size <= end:
        magic, size, check, of = _HEADER.unpack_from(data, at)
        at += _HEADER.size + size
        if magic != _MAGIC or at > end:
            return
        if of != wanted:
            yield None
            continue
        encoded = data[at - size : at]
        if crc32(encoded) != check:
            return
        body = _decode(encoded)
        yield body if body.function == name else None


def _record(body: _Body) -> LogRecord:
    return LogRecord(body.request_id, body.time_s, body.text, body.dropped_bytes, body.function, body.version)
