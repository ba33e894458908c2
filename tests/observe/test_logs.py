"""What is kept of what functions printed, and who hears of it."""

from __future__ import annotations

import asyncio

from sockd.base.telemetry import LogRecord
from sockd.observe.logs import RECORD_BYTES, LogBook


def record(number: int, text: bytes = b"") -> LogRecord:
    return LogRecord(request_id=f"r{number}", time_s=float(number), text=text, dropped_bytes=0)


def ids(records: list[LogRecord]) -> list[str]:
    return [record.request_id for record in records]


async def one_turn() -> None:
    """Lets the other tasks run once."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


def test_the_tail_is_the_newest_records_oldest_first() -> None:
    book = LogBook()
    for number in range(5):
        book.append("f", record(number))
    assert ids(book.tail("f", limit=2)) == ["r3", "r4"]
    assert ids(book.tail("f")) == ["r0", "r1", "r2", "r3", "r4"]
    assert ids(book.tail("f", request_id="r2")) == ["r2"]
    assert book.tail("g") == []


def test_a_function_keeps_a_bounded_number_of_records() -> None:
    book = LogBook(max_records_per_function=2)
    for number in range(5):
        book.append("f", record(number))
    assert ids(book.tail("f")) == ["r3", "r4"]


def test_a_function_keeps_a_bounded_number_of_bytes_but_always_its_newest_record() -> None:
    book = LogBook(max_bytes_per_function=2 * RECORD_BYTES + 1000)
    for number in range(3):
        book.append("f", record(number, b"x" * 500))
    assert ids(book.tail("f")) == ["r1", "r2"]
    book.append("f", record(3, b"x" * 5000))
    assert ids(book.tail("f")) == ["r3"]
    assert book.bytes == RECORD_BYTES + 5000


def test_all_functions_together_are_bounded_and_the_longest_silent_pays() -> None:
    book = LogBook(max_bytes=3 * RECORD_BYTES)
    for name in ("a", "b", "c"):
        book.append(name, record(0))
    book.append("a", record(1))
    assert [ids(book.tail(name)) for name in ("a", "b", "c")] == [["r0", "r1"], [], ["r0"]]
    assert book.bytes == 3 * RECORD_BYTES


def test_a_forgotten_function_leaves_nothing() -> None:
    book = LogBook()
    book.append("f", record(0))
    book.forget("f")
    book.forget("f")
    assert (book.tail("f"), book.bytes) == ([], 0)


def test_a_follower_gets_what_is_printed_from_now_on_until_the_function_is_forgotten() -> None:
    async def main() -> None:
        book = LogBook()
        book.append("f", record(0))
        heard: list[LogRecord] = []
        with book.follow("f") as records:

            async def listen() -> None:
                async for each in records:
                    heard.append(each)

            listener = asyncio.create_task(listen())
            await one_turn()
            book.append("f", record(1))
            book.append("g", record(2))
            await one_turn()
            book.append("f", record(3))
            book.forget("f")
            await listener
        assert ids(heard) == ["r1", "r3"]

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_slow_follower_loses_the_oldest_and_knows_how_many() -> None:
    async def main() -> None:
        book = LogBook(follower_records=2)
        with book.follow("f") as records:
            for number in range(5):
                book.append("f", record(number))
            book.forget("f")
            assert [each.request_id async for each in records] == ["r3", "r4"]
            assert records.dropped == 3

    asyncio.run(main())


def test_a_follower_that_left_costs_nothing() -> None:
    async def main() -> None:
        book = LogBook()
        with book.follow("silent"):
            pass
        assert not book._rings

    asyncio.run(main())


def test_a_follower_survives_that_its_function_lost_all_its_records() -> None:
    async def main() -> None:
        book = LogBook(max_bytes=2 * RECORD_BYTES)
        with book.follow("f") as records:
            book.append("f", record(0))
            for number in range(1, 4):
                book.append("g", record(number))
            assert book.tail("f") == []
            book.append("f", record(4))
            book.forget("f")
            assert [each.request_id async for each in records] == ["r0", "r4"]

    asyncio.run(main())
