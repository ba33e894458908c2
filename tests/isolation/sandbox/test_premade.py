"""What is made ahead: taken in turn, made again when a start is over, and given back when nobody takes it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from sockd.isolation.roots import premade
from sockd.isolation.roots.premade import Premade
from sockd.isolation.sandbox.sandbox_pipes import SandboxPipes


class Numbers:
    """Makes 1, 2, 3 and notes which of them are given back."""

    def __init__(self) -> None:
        self.made = 0
        self.closed: list[int] = []
        self.full = asyncio.Event()
        self.fails = False
        self.failed = asyncio.Event()

    def make(self) -> int:
        if self.fails:
            self.failed.set()
            raise OSError(errno.EMFILE, "no more")
        self.made += 1
        if self.made > premade.MOST:
            self.full.set()
        return self.made


def test_the_first_is_made_on_the_spot_and_the_next_ahead() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        made = Premade(numbers.make, numbers.closed.append)
        assert (made.take(), numbers.made) == (1, 1)
        await numbers.full.wait()
        assert [made.take() for _ in range(premade.MOST)] == [2, 3, 4, 5]
        assert numbers.made == 1 + premade.MOST
        assert made.take() == 6
        made.close()
        assert numbers.closed == []

    asyncio.run(scenario())


def test_what_no_one_takes_is_given_back() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        made = Premade(numbers.make, numbers.closed.append)
        made.take()
        await numbers.full.wait()
        made.close()
        made.close()
        assert numbers.closed == [2, 3, 4, 5]

    asyncio.run(scenario())


def test_what_cannot_be_made_ahead_is_an_error_of_who_takes_it() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        made = Premade(numbers.make, numbers.closed.append)
        made.take()
        numbers.fails = True
        await numbers.failed.wait()
        with pytest.raises(OSError, match="no more"):
            made.take()
        numbers.fails = False
        assert made.take() == 2
        await numbers.full.wait()
        made.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("module", "call"), [(os, "pipe"), (socket, "socketpair")])
def test_connections_that_cannot_be_made_leave_nothing(
    nth_call: Callable[..., Iterator[int]], module: object, call: str
) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in nth_call(module, call):
            with suppress(OSError):
                SandboxPipes.open().close()
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())
