"""Logs on disk: found again after a restart and after a kill, whatever the last frame looks like, within their bounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sockd.observe import log_store
from sockd.observe.log_store import LogStore
from sockd.plain.telemetry import LogRecord

MB = 1 << 20


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk is, what was appended is there."""
    monkeypatch.setattr(log_store, "PATIENCE_S", 60.0)


def record(number: int, text: bytes = b"hello\n", function: str = "f") -> LogRecord:
    return LogRecord(f"{number:08x}-0000", 1000.0 + number, text, 0, function, "7")


def stored(directory: Path, test: Callable[[LogStore], Coroutine[Any, Any, None]], keep_bytes: int = MB) -> None:
    async def run() -> None:
        store = LogStore(directory, keep_bytes)
        try:
            await test(store)
        finally:
            await store.aclose()

    asyncio.run(run())


def kept_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_what_was_written_is_found_again_by_a_later_life(tmp_path: Path) -> None:
    odd = bytes(range(256)) * 4

    async def write(store: LogStore) -> None:
        for number in range(10):
            await store.append(record(number, odd))
        await store.append(record(99, function="g"))

    async def read(store: LogStore) -> None:
        assert await store.find("f") == [record(number, odd) for number in range(10)]
        assert await store.find("f", limit=2) == [record(8, odd), record(9, odd)]
        assert await store.find("f", limit=0) == []
        assert await store.find("f", since_s=1007.0) == [record(number, odd) for number in (7, 8, 9)]
        assert await store.find("f", request_id="00000003") == [record(3, odd)]
        assert await store.find("g") == [record(99, function="g")] and await store.find("h") == []

    stored(tmp_path, write)
    stored(tmp_path, read)


def test_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        for number in range(3):
            await store.append(record(number, b"x" * 1000))
            assert kept_bytes(tmp_path) > 1000 * (number + 1)

    stored(tmp_path, write)


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "flipped"])
def test_a_torn_tail_loses_the_last_record_and_no_other(tmp_path: Path, damage: str) -> None:
    async def write(store: LogStore) -> None:
        for number in range(5):
            await store.append(record(number))

    async def read(store: LogStore) -> None:
        assert [each.request_id for each in await store.find("f")] == [record(n).request_id for n in (0, 1, 2, 3, 5)]

    async def write_more(store: LogStore) -> None:
        await store.append(record(5))

    stored(tmp_path, write)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    frame = len(data) // 5
    torn = {
        "cut": data[:-3],
        "zeros": data[:-frame] + bytes(frame + 100),
        "garbage": data[:-frame] + os.urandom(frame),
        "flipped": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    }[damage]
    file.write_bytes(torn)
    stored(tmp_path, write_more)
    stored(tmp_path, read)


def test_the_oldest_go_when_there_is_too_much_and_restarts_do_not_add_up(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        for number in range(400):
            await store.append(record(number, b"x" * 1000))
        numbers = [int(each.request_id[:8], 16) for each in await store.find("f")]
        assert numbers == list(range(numbers[0], 400)) and 40 < len(numbers) < 100

    async def nothing(store: LogStore) -> None:
        assert len(await store.find("f")) > 40

    stored(tmp_path, write, 100_000)
    assert kept_bytes(tmp_path) < 115_000
    for _ in range(20):
        stored(tmp_path, nothing, 100_000)
    assert kept_bytes(tmp_path) < 115_000


def test_a_removed_function_s_records_are_not_those_of_its_successor(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        await store.append(record(1))
        await store.append(record(2, function="other"))
        store.forget("f")
        assert await store.find("f") == []
        await store.append(record(3))

    async def read(store: LogStore) -> None:
        assert await store.find("f") == [record(3)] and len(await store.find("other")) == 1

    stored(tmp_path, write)
    stored(tmp_path, read)


def test_many_at_once_are_all_written_in_their_order(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        await asyncio.gather(*(store.append(record(number)) for number in range(3000)))
        assert await store.find("f") == [record(number) for number in range(3000)] and not store.lost

    stored(tmp_path, write)


def test_a_disk_that_fails_loses_records_counts_them_and_keeps_nobody(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        os.close(store._fd)
        store._fd = os.open("/dev/full", os.O_WRONLY)
        await store.append(record(1))
        assert store.lost == 1

    stored(tmp_path, write)


def test_more_than_may_wait_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "PENDING_BYTES", 5000)

    async def write(store: LogStore) -> None:
        await asyncio.gather(*(store.append(record(number, b"x" * 900)) for number in range(10)))
        assert store.lost == 5 and len(await store.find("f")) == 5

    stored(tmp_path, write)
