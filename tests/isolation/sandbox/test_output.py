"""What a sandbox prints: drained always, kept up to a limit, handed over whole."""

from __future__ import annotations

import asyncio
import os

import pytest

from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.output import PIPE_BYTES, Output
from sockd.isolation.sandbox.read_turns import ReadTurns

pytestmark = pytest.mark.anyio


async def test_a_take_gives_all_that_is_in_the_pipe() -> None:
    output, fd = Output.open(1 << 20)
    output.start(ReadTurns(), LiveOutput(), print)
    os.write(fd, b"x" * PIPE_BYTES)
    assert output.take() == (b"x" * PIPE_BYTES, 0)
    assert output.take() == (b"", 0)
    os.close(fd)
    output.close()


async def test_what_is_over_the_limit_is_counted_and_dropped() -> None:
    output, fd = Output.open(10)
    output.start(ReadTurns(), LiveOutput(), print)
    for _ in range(5):
        os.write(fd, b"123456")
        await asyncio.sleep(0)
    assert output.take() == (b"1234561234", 20)
    os.write(fd, b"next")
    assert output.take() == (b"next", 0)
    os.close(fd)
    output.close()


async def test_a_writer_never_waits() -> None:
    output, fd = Output.open(100)
    output.start(ReadTurns(), LiveOutput(), print)

    def flood() -> None:
        for _ in range(100):
            os.write(fd, b"x" * 100_000)
        os.close(fd)

    await asyncio.to_thread(flood)
    kept, dropped = output.take()
    assert len(kept) == 100
    assert dropped == 100 * 100_000 - 100
    output.close()


async def test_a_take_ends_though_somebody_goes_on_writing() -> None:
    output, fd = Output.open(1 << 30)
    output.start(ReadTurns(), LiveOutput(), print)
    os.set_blocking(fd, False)

    def write_ahead() -> None:
        try:
            os.write(fd, b"x" * PIPE_BYTES)
        except BlockingIOError:
            return

    original = output._read

    def read_and_refill() -> int:
        count = original()
        write_ahead()
        return count

    output._read = read_and_refill  # type: ignore[method-assign]
    write_ahead()
    kept, _ = output.take()
    assert PIPE_BYTES <= len(kept) <= 2 * PIPE_BYTES
    os.close(fd)
    output.close()


async def test_the_end_of_all_writers_and_closing_twice_are_fine() -> None:
    output, fd = Output.open(100)
    output.start(ReadTurns(), LiveOutput(), print)
    os.write(fd, b"last")
    os.close(fd)
    for _ in range(5):
        await asyncio.sleep(0)
    assert output.take() == (b"last", 0)
    assert output.take() == (b"", 0)
    output.close()
    output.close()
    assert output.take() == (b"", 0)
