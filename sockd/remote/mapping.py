"""Many calls at once: a bounded number of threads, results in order, a bar for who looks. Owns the threads of one `run`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

CONCURRENCY = 32

Advance = Callable[[], None]


def run(
    call: Callable[[Any], Any],
    inputs: Iterable[Any],
    *,
    concurrency: int,
    return_exceptions: bool,
    label: str | None,
) -> list[Any]:
    """`call` of each input. Inputs are taken as they are needed, so that they may come from a generator.

    Args: label: of the bar; None: none. Raises: the first error, unless they are results."""
    if concurrency < 1:
        raise ValueError("concurrency must be at least 1")
    results: dict[int, Any] = {}
    failed: list[BaseException] = []
    feed = enumerate(inputs)
    feeding = threading.Lock()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                with feeding:
                    number, each = next(feed, (-1, None))
                if number < 0:
                    return
                results[number] = _result(call, each, return_exceptions)
                advance()
            except BaseException as error:  # of the inputs themselves, too
                failed.append(error)
                stopped.set()

    total = len(inputs) if isinstance(inputs, Sized) else None
    count = concurrency if total is None else min(concurrency, total)
    with _bar(label, total) as advance:
        threads = [threading.Thread(target=work, name=f"sockd-map-{number}") for number in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stopped.set()  # an interrupt: what is under way ends, and no more is begun
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(results))]


def is_watched(progress: bool | None) -> bool:
    """Whether to show a bar."""
    return sys.stderr.isatty() if progress is None else progress


def _result(call: Callable[[Any], Any], each: Any, return_exceptions: bool) -> Any:
    try:
        return call(each)
    except Exception as error:
        if return_exceptions:
            return error
        raise


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
