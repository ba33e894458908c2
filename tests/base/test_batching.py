"""Calls that are made together while another is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sockd.base.batching import Batching

pytestmark = pytest.mark.anyio


class Store:
    """Doubles numbers, together, when it may; fails for a negative one."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.may = asyncio.Event()

    async def double(self, numbers: Sequence[int]) -> list[int]:
        self.made.append(list(numbers))
        await self.may.wait()
        if min(numbers) < 0:
            raise ValueError("negative")
        return [2 * number for number in numbers]

    def batching(self, most: int = 100, most_size: int = 1000) -> Batching[int, int]:
        return Batching(self.double, abs, most=most, most_size=most_size)


async def test_calls_that_come_while_one_is_under_way_are_made_together() -> None:
    store = Store()
    batching = store.batching()
    calls = [asyncio.ensure_future(batching.do(number)) for number in range(5)]
    await asyncio.sleep(0)
    calls += [asyncio.ensure_future(batching.do(number)) for number in (5, 6)]
    await asyncio.sleep(0)
    assert store.made == [[0, 1, 2, 3, 4]]
    store.may.set()
    assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8, 10, 12]
    assert store.made == [[0, 1, 2, 3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("most", "most_size", "made"),
    [(2, 1000, [[1, 2], [3, 50], [4]]), (100, 10, [[1, 2, 3], [50], [4]]), (100, 1, [[1], [2], [3], [50], [4]])],
)
async def test_no_more_calls_are_made_together_than_may(most: int, most_size: int, made: list[list[int]]) -> None:
    store = Store()
    store.may.set()
    batching = store.batching(most, most_size)
    assert await asyncio.gather(*map(batching.do, (1, 2, 3, 50, 4))) == [2, 4, 6, 100, 8]
    assert store.made == made


async def test_a_failure_is_that_of_the_calls_made_together_and_of_no_later_one() -> None:
    store = Store()
    store.may.set()
    batching = store.batching()
    assert [type(each) for each in await asyncio.gather(*map(batching.do, (1, -1)), return_exceptions=True)] == [
        ValueError,
        ValueError,
    ]
    assert await batching.do(3) == 6


async def test_a_call_is_made_although_its_caller_has_left() -> None:
    store = Store()
    batching = store.batching()
    left, stayed = (asyncio.ensure_future(batching.do(number)) for number in (1, 2))
    await asyncio.sleep(0)
    left.cancel()
    store.may.set()
    assert await stayed == 4 and store.made == [[1, 2]]


async def test_closing_waits_for_what_is_under_way() -> None:
    store = Store()
    batching = store.batching()
    call = asyncio.ensure_future(batching.do(1))
    await asyncio.sleep(0)
    store.may.set()
    await batching.aclose()
    assert call.done() and call.result() == 2
    await batching.aclose()
