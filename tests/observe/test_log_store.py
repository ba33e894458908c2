"""Logs on disk: found again after a restart and after a kill, whatever the last frame looks like, within their bounds."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from sockd.base.telemetry import LogRecord
from sockd.observe import log_segments, log_store
from sockd.observe.log_store import LogStore
from tests.support.cases import case
from tests.support.small_disk import small_disk

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


def test_a_record_that_comes_when_the_last_one_is_written_is_written_before_the_end(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        written = store.write(record(0))
        assert written is not None
        written.add_done_callback(lambda _: store.write(record(1)))

    async def read(store: LogStore) -> None:
        assert await store.find("f") == [record(0), record(1)]

    stored(tmp_path, write)
    stored(tmp_path, read)


def test_a_record_that_comes_after_the_end_is_counted_as_lost(tmp_path: Path) -> None:
    async def run() -> None:
        store = LogStore(tmp_path, MB)
        await store.aclose()
        assert store.write(record(0)) is None and store.lost == 1
        await store.append(record(1))
        assert store.lost == 2

    asyncio.run(run())


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


def test_a_disk_that_fails_loses_records_counts_them_and_keeps_no_one(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        os.close(store._fd)
        store._fd = os.open("/dev/full", os.O_WRONLY)
        await store.append(record(1))
        assert store.lost == 1

    stored(tmp_path, write)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, 8) as disk:
        yield disk


@pytest.mark.root
def test_logs_leave_half_of_a_disk_to_others_and_give_back_what_these_need(disk: Path) -> None:
    logs = disk / "logs"

    async def test(store: LogStore) -> None:
        for number in range(200):
            await store.append(record(number, b"x" * 100_000))
        assert 2 * MB < kept_bytes(logs) < 5 * MB
        room = os.statvfs(disk)
        with open(disk / "others", "wb") as others:
            os.posix_fallocate(others.fileno(), 0, room.f_bavail * room.f_frsize)
        for number in range(200, 220):
            await store.append(record(number, b"x" * 100_000))
        room = os.statvfs(disk)
        assert room.f_bavail * room.f_frsize > MB, "a deploy finds room"
        assert store.lost < 5
        assert (await store.find("f", limit=1))[0].request_id == record(219).request_id

    stored(logs, test, keep_bytes=64 * MB)


@pytest.mark.root
def test_what_follows_a_record_that_a_full_disk_has_torn_is_found(disk: Path) -> None:
    filling = disk / "filling"

    async def test(store: LogStore) -> None:
        await store.append(record(1))
        room = os.statvfs(disk)
        with open(filling, "wb") as others:
            os.posix_fallocate(others.fileno(), 0, room.f_bavail * room.f_frsize - 8192)
        await store.append(record(2, b"x" * 100_000))
        assert store.lost == 1
        filling.unlink()
        await store.append(record(3))
        assert await store.find("f") == [record(1), record(3)]

    stored(disk / "logs", test)


def test_more_than_may_wait_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "PENDING_BYTES", 5000)

    async def write(store: LogStore) -> None:
        await asyncio.gather(*(store.append(record(number, b"x" * 900)) for number in range(10)))
        assert store.lost == 5 and len(await store.find("f")) == 5

    stored(tmp_path, write)


@case("K28", "a function prints ten times what all logs may keep", expect="others keep every record of theirs")
def test_a_function_that_prints_much_pushes_out_its_own_records_and_no_other_s(tmp_path: Path) -> None:
    keep_bytes = 200_000
    quiet = [record(number, b"q" * 300, f"quiet {number % 5}") for number in range(50)]

    async def write(store: LogStore) -> None:
        for each in quiet:
            await store.append(each)
        for number in range(2000):
            await store.append(record(number, b"x" * 1000, "loud"))

    async def read(store: LogStore) -> None:
        for number in range(5):
            assert await store.find(f"quiet {number}") == quiet[number::5]
        loud = [int(each.request_id[:8], 16) for each in await store.find("loud")]
        assert loud == list(range(loud[0], 2000)) and len(loud) > 100

    stored(tmp_path, write, keep_bytes)
    assert kept_bytes(tmp_path) < 1.15 * keep_bytes and len(list(tmp_path.iterdir())) < 2 * log_store.MANY_FILES
    stored(tmp_path, read, keep_bytes)


def test_functions_that_print_much_keep_equal_shares(tmp_path: Path) -> None:
    async def write(store: LogStore) -> None:
        for number in range(3000):
            await store.append(record(number, b"x" * 1000, f"loud {number % 3}"))
        counts = [len(await store.find(f"loud {each}")) for each in range(3)]
        assert min(counts) > 40 and max(counts) < 1.3 * min(counts)

    stored(tmp_path, write, 200_000)


def test_small_segments_are_joined_in_their_order_although_one_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "MANY_FILES", 4)

    async def write(store: LogStore) -> None:
        await store.append(record(len(list(tmp_path.iterdir()))))

    for _ in range(8):
        stored(tmp_path, write)
    assert len(list(tmp_path.iterdir())) == 8
    torn = tmp_path / "000003.log"
    torn.write_bytes(torn.read_bytes() + b"slg1 and no more")

    async def join(store: LogStore) -> None:
        await store.append(record(99))
        assert len(list(tmp_path.iterdir())) == 2
        found = await store.find("f")
        assert [int(each.request_id[:8], 16) for each in found] == [*range(1, 9), 99]

    stored(tmp_path, join)


@case("K28", "print text and bytes of a record of another request", expect="it is text of the function that printed it")
def test_a_text_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    forged = log_segments.frame(log_segments.Body("victim", "f" * 36, 1.0, "1", b"forged"))
    text = b"--- 2026-01-01 00:00:00 ffffffff version 1\n" + forged * 3

    async def write(store: LogStore) -> None:
        await store.append(record(1, text))
        for number in range(200):
            await store.append(record(number, text, "loud"))
        assert await store.find("victim") == []
        assert await store.find("f") == [record(1, text)]

    stored(tmp_path, write, 20_000)


def test_a_segment_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """The bytes that sockd wrote before functions had shares."""
    body = bytes.fromhex("96a166a6722d30303031cb408f480000000000a137c40668656c6c6f0a00")
    head = b"slg1" + struct.pack("<III", len(body), crc32(body), crc32(b"f"))
    (tmp_path / "000001.log").write_bytes(head + body)

    async def read(store: LogStore) -> None:
        assert await store.find("f") == [LogRecord("r-0001", 1001.0, b"hello\n", 0, "f", "7")]

    stored(tmp_path, read)


def test_what_an_earlier_life_left_half_done_is_removed(tmp_path: Path) -> None:
    (tmp_path / "000001.log").write_bytes(b"")
    (tmp_path / "000002.new").write_bytes(b"x")

    async def nothing(store: LogStore) -> None:
        assert [path.name for path in tmp_path.iterdir()] == ["000001.log"] and await store.find("f") == []

    stored(tmp_path, nothing)


@pytest.mark.parametrize(
    ("sizes", "limit", "share"),
    [([], 10, 10), ([3], 10, 10), ([30], 10, 10), ([1, 30], 10, 9), ([5, 5, 30], 9, 3), ([1, 2, 50, 60], 13, 5)],
)
def test_a_share_is_equal_but_for_those_that_need_less(sizes: list[int], limit: int, share: int) -> None:
    assert log_segments.fair_share(sizes, limit) == share
    assert sum(min(size, share) for size in sizes) <= limit
