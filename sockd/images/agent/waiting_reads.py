"""Reads that wait for chunks: answered once, by the first thread that can: the last chunk, a failure, an interrupt, the time
limit.

Owns a thread that ends reads whose time is over. POLICY: a read fails when it has waited for `stall_s` and no chunk of any
read has arrived for as long, so that a slow store is waited for and one that hangs is not. A program that then tries one file
after the other would wait for as long at each: for `stall_s`, reads of this image that come within QUICK_S of its last failure
fail at once, until a chunk arrives. Their chunks are fetched all the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from sockd.base.errors import SockdError, StoreUnavailable
from sockd.images.agent import fuse_messages as fuse

MOST_INTERRUPTED = 64
"""Interrupts of requests that are not known yet: another thread has read them and has not come here."""


class WaitingRead:
    """A READ without its reply."""

    __slots__ = ("_lock", "_missing", "device", "image", "pieces", "since_s", "unique")

    def __init__(self, device: int, unique: int, image: str, pieces: list[bytes | None], missing: int) -> None:
        self.device = device
        self.unique = unique
        self.image = image
        self.pieces = pieces
        """None where a chunk is missing."""
        self._missing = missing
        self.since_s = time.monotonic()
        self._lock = threading.Lock()

    def fill(self, place: int, piece: bytes) -> bool:
        """One piece has arrived. True: it was the last."""
        with self._lock:
            self.pieces[place] = piece
            self._missing -= 1
            return self._missing == 0


class WaitingReads:
    """All of them. `close` waits for the thread."""

    QUICK_S = 0.5
    """Shorter than the second after which callers are asked to try again."""

    def __init__(
        self, store: str, stall_s: float, last_arrival_s: Callable[[], float], report: Callable[[str, SockdError], None]
    ) -> None:
        """Args: store: its name, for errors; last_arrival_s: when a chunk last came (time.monotonic); report: called for each
        read that fails."""
        self._store = store
        self._stall_s = stall_s
        self._last_arrival_s = last_arrival_s
        self._report = report
        self._reads: dict[tuple[int, int], WaitingRead] = {}
        self._by_age: deque[WaitingRead] = deque()
        self._stalled: dict[str, tuple[float, float]] = {}
        """By image: when a read of it has waited in vain, and when one has failed last."""
        self._interrupted: OrderedDict[int, None] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closed = False
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._end_stalled, name="stalled reads", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, read: WaitingRead) -> None:
        """From now on it is answered once; at once, if another of its image has just waited in vain."""
        with self._changed:
            is_vain = self._is_vain(read)
            self._reads[read.device, read.unique] = read
            self._by_age.append(read)
            if len(self._by_age) == 1:
                self._changed.notify()
            was_interrupted = read.unique in self._interrupted
            self._interrupted.pop(read.unique, None)
        if was_interrupted:
            self.interrupt(read.unique)
        elif is_vain:
            self.counts["failed_at_once"] += 1
            self.fail(read, StoreUnavailable(self._store, f"no chunk has come for {self._stall_s:g} s"))

    def take(self, read: WaitingRead) -> bool:
        """Whether the caller is the one who answers it."""
        with self._changed:
            return self._reads.pop((read.device, read.unique), None) is not None

    def fail(self, read: WaitingRead, error: SockdError) -> None:
        """EIO, unless it has been answered."""
        if self.take(read):
            self.counts[f"failed_{type(error).__name__}"] += 1
            self._report(read.image, error)  # first: the daemon should know why before the function fails
            self._answer(read, errno.EIO)

    def interrupt(self, unique: int) -> None:
        """Answer the request that a signal has interrupted, if it waits, so that it waits no longer."""
        with self._changed:
            read = next((each for each in self._reads.values() if each.unique == unique), None)
            if read is None:
                self._interrupted[unique] = None
                if len(self._interrupted) > MOST_INTERRUPTED:
                    self._interrupted.popitem(last=False)
                return
        if self.take(read):
            self.counts["interrupted"] += 1
            self._answer(read, errno.EINTR)

    def _is_vain(self, read: WaitingRead) -> bool:
        stalled_s, failed_s = self._stalled.get(read.image, (0.0, 0.0))
        if not stalled_s:
            return False
        is_vain = (
            read.since_s < min(stalled_s + self._stall_s, failed_s + self.QUICK_S)
            and self._last_arrival_s() < stalled_s
        )
        if is_vain:
            self._stalled[read.image] = stalled_s, read.since_s
        else:
            del self._stalled[read.image]
        return is_vain

    def close(self) -> None:
        """End the thread. Reads that wait are not answered."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _answer(self, read: WaitingRead, number: int) -> None:
        with contextlib.suppress(OSError):  # the request, or the connection, is gone
            os.write(read.device, fuse.error(read.unique, number))

    def _end_stalled(self) -> None:
        while (stalled := self._next_stalled()) is not None:
            waited_s = time.monotonic() - stalled.since_s
            self.fail(stalled, StoreUnavailable(self._store, f"no chunk has come for {waited_s:.1f} s"))

    def _next_stalled(self) -> WaitingRead | None:
        with self._changed:
            while not self._is_closed:
                while self._by_age and (self._by_age[0].device, self._by_age[0].unique) not in self._reads:
                    self._by_age.popleft()
                if not self._by_age:
                    self._changed.wait()
                    continue
                oldest = self._by_age[0]
                left_s = max(oldest.since_s, self._last_arrival_s()) + self._stall_s - time.monotonic()
                if left_s <= 0:
                    self._by_age.popleft()
                    now_s = time.monotonic()
                    self._stalled[oldest.image] = now_s, now_s
                    return oldest
                self._changed.wait(left_s)
            return None
