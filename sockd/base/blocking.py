"""Blocking file work in a thread that ends before the call returns.

`asyncio.to_thread` alone returns at once when its caller is cancelled, while the thread goes on writing to the very
directory that the caller's `finally` deletes.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns or raises. A cancellation is raised only after the thread has ended."""
    return await in_thread_of(None, function, *args, **kwargs)


async def in_thread_of(threads: Executor | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_thread`, in one of these threads instead of those that all share (None)."""
    work = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await _ended(asyncio.get_running_loop().run_in_executor(threads, work))


async def _ended(work: asyncio.Future[T]) -> T:
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        if not work.cancelled():
            work.exception()
        raise cancelled
    return work.result()
