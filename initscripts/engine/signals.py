"""Signals between the loop and a guest's thread: the guest waits for one thing at a time, and a stop ends the wait.

There are two threads to a run, and every hand-over works the same way: one side writes what it has to say, then looks at
what the other wrote. Under the GIL one of both sees the other, so there is no lock to take.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from sockd_initscripts.engine.watched import Watched
from sockd_initscripts.errors import CallFailed


class Signal:
    """Set once, on the loop; waited for by a guest's thread."""

    __slots__ = ("_lock", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let the waiting thread go on. Again is nothing."""
        if not self.is_set:
            self.is_set = True
            self._lock.release()

    def wait(self) -> None:
        """Block this thread until the signal is set."""
        with self._lock:
            pass


class Waiting:
    """What a run's guest waits for at the moment, if it does."""

    __slots__ = ("_signal", "is_stopped")

    def __init__(self) -> None:
        self._signal: Signal | None = None
        self.is_stopped = False

    def wait_for(self, signal: Signal) -> None:
        """Block the guest's thread until the signal is set, or until the run is stopped: the caller looks which."""
        self._signal = signal
        if not self.is_stopped:
            signal.wait()
        self._signal = None

    def stop(self) -> None:
        """On the loop: end the wait that there is, and all that would follow."""
        self.is_stopped = True
        if (signal := self._signal) is not None:
            signal.set()


class LoopCalls:
    """Calls that guests' threads hand to the loop, in order; however many wait, the loop is woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.watched = Watched(loop)
        """Where they add what the loop shall listen to, which wakes no thread."""
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the loop call this soon. What it raises is the loop's exception handler's."""
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: the process ends, and no thread waits for the call
                self._calls.clear()

    def ask(self, waiting: Waiting, function: Callable[..., Any], *args: Any) -> Any:
        """Have the loop call this, and wait for what it returns or raises.

        Raises CallFailed(ECANCELED) when the run is stopped first; the call may be made all the same."""
        answer: list[tuple[bool, Any]] = []
        signal = Signal()

        def call() -> None:
            try:
                answer.append((True, function(*args)))
            except Exception as error:
                answer.append((False, error))
            signal.set()

        self.post(call)
        waiting.wait_for(signal)
        if not answer:
            raise CallFailed(errno.ECANCELED)
        succeeded, value = answer[0]
        if not succeeded:
            raise value
        return value

    def _drain(self) -> None:
        self._is_woken = False
        while self._calls:
            function, args = self._calls.popleft()
            try:
                function(*args)
            except Exception as error:
                self.loop.call_exception_handler({"message": "a guest's call", "exception": error})
