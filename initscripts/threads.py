"""Guest threads: a bounded number, some of them ready before they are needed, none ever ended before the engine is."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

STACK_BYTES = 4 * 1024 * 1024
"""wasm's part is modules.WASM_STACK_BYTES. With less than 2 MiB a guest's recursion ended in a SIGSEGV instead of a trap
(hazard 3); what is not touched costs nothing."""


class GuestThreads:
    """The threads. All methods but the jobs run on the loop."""

    def __init__(self, limit: int, ready: int) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.busy = 0
        """Jobs that were given and not yet reported back by `done`."""
        for _ in range(min(ready, limit)):
            self._add()

    @property
    def is_full(self) -> bool:
        return self.busy >= self._limit

    def give(self, job: Callable[[], None]) -> None:
        """Have a thread do this now; it must not raise. Not when full."""
        self.busy += 1
        if self.busy > len(self._threads):
            self._add()
        self._jobs.put(job)

    def done(self) -> None:
        """A job has ended, or is about to have: its thread may be given the next one."""
        self.busy -= 1

    def prepare(self) -> None:
        """Have one thread more than there are jobs, if that is allowed: making one takes longer than waking one."""
        if len(self._threads) <= self.busy < self._limit:
            self._add()

    def close(self) -> None:
        """End all threads, once they are done with what they do."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _add(self) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=self._work, name=f"guest-{len(self._threads)}", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
        self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what a run held must not wait for the thread's next one
