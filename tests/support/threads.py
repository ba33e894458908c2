"""Calls in threads of their own: several at the same time, or one in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """`call(0)` to `call(count - 1)`, all at the same time; the results in order."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


@contextmanager
def in_background(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run `call` in a thread; the value is a function that waits for its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        yield lambda: future.result(60)
