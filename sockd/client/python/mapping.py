"""Many calls of one function at once, by a bounded number of threads, with a progress bar on a terminal.

Results come in the order of the arguments or in that of their completion.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from queue import SimpleQueue
from typing import Any, Generic, TypedDict, TypeVar

T = TypeVar("T")
R = TypeVar("R")

CONCURRENCY = 32

Advance = Callable[[], None]


class How(TypedDict):
    """How calls are made; as the arguments of `run`."""

    concurrency: int
    return_exceptions: bool
    label: str | None


def run(
    call: Callable[[Any], R],
    inputs: Iterable[Any],
    *,
    concurrency: int,
    return_exceptions: bool,
    label: str | None,
) -> list[R]:
    """`call` of each input. Inputs are taken as they are needed, so that they may come from a generator.

    Args: label: of the bar; None: none. Raises: the first error, unless they are results."""
    found = ended(call, inputs, concurrency=concurrency, return_exceptions=return_exceptions, label=label)
    results = {number: result for number, _, result in found}
    return [results[number] for number in range(len(results))]


def ended(
    call: Callable[[Any], R],
    inputs: Iterable[T],
    *,
    concurrency: int,
    return_exceptions: bool,
    label: str | None,
) -> Iterator[tuple[int, T, R]]:
    """As `run`: the number of each input, the input, and its result, in the order of the calls' ends."""
    if concurrency < 1:
        raise ValueError("concurrency must be at least 1")
    return _ended(_Calls(call, inputs, concurrency, return_exceptions), label)


def _ended(calls: _Calls[T, R], label: str | None) -> Iterator[tuple[int, T, R]]:
    with _bar(label, calls.total) as advance:
        for each in calls.run():
            advance()
            yield each


class _Calls(Generic[T, R]):
    """The threads of one `run`, which take inputs and put results until there is no more, or an error."""

    def __init__(
        self, call: Callable[[Any], R], inputs: Iterable[T], concurrency: int, return_exceptions: bool
    ) -> None:
        self.total = len(inputs) if isinstance(inputs, Sized) else None
        self._call = call
        self._return_exceptions = return_exceptions
        self._feed = enumerate(inputs)
        self._feeding = threading.Lock()
        self._count = concurrency if self.total is None else min(concurrency, self.total)
        self._room = threading.Semaphore(2 * self._count)
        """For calls under way, and for results that were not read yet: then no more inputs are taken."""
        self._results: SimpleQueue[tuple[int, T, R] | None] = SimpleQueue()
        """None: a thread has ended."""
        self._failed: list[BaseException] = []
        self._stopped = threading.Event()

    def run(self) -> Iterator[tuple[int, T, R]]:
        """All results. Raises: the first error, after the results of all calls that were under way."""
        for number in range(self._count):
            threading.Thread(target=self._work, name=f"sockd-map-{number}").start()
        running = self._count
        try:
            while running:
                each = self._results.get()
                if each is None:
                    running -= 1
                    continue
                self._room.release()
                yield each
        finally:
            # An interrupt, or no more is read: what is under way ends, and no more is begun.
            self._stopped.set()
            self._room.release(2 * self._count + 1)
        if self._failed:
            raise self._failed[0]

    def _work(self) -> None:
        try:
            while self._room.acquire() and not self._stopped.is_set():
                with self._feeding:
                    number, each = next(self._feed, (-1, None))
                if number < 0:
                    return
                self._results.put((number, each, self._result(each)))  # type: ignore[arg-type]  # None is of no input
        except BaseException as error:  # of the inputs themselves, too
            self._failed.append(error)
            self._stopped.set()
        finally:
            self._results.put(None)

    def _result(self, each: Any) -> Any:
        try:
            return self._call(each)
        except Exception as error:
            if self._return_exceptions:
                return error
            raise


def is_watched(progress: bool | None) -> bool:
    """Whether to show a bar."""
    return sys.stderr.isatty() if progress is None else progress


@contextlib.contextmanager
def _bar(label: str | None, total: int | None) -> Iterator[Advance]:
    if label is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)
