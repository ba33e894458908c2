"""Processes that share a chunk store and make one call of it at a time, in the order that a test decides.

Each runs in a thread that waits before every call. A listing is read in pages, as S3 does, with calls of others between them. A
crash ends the process instead of its next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

from sockd.images.chunks.store import ChunkStore, StoredObject

PAGE = 2
STUCK_S = 20.0


class Crash(BaseException):
    """The process was killed. No `except Exception` of the product sees it."""


class Process:
    """One, which has made no call yet."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.is_done = False
        self.is_atomic = False
        """While it is, calls do not wait."""
        self.error: BaseException | None = None
        self._run = run
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._crashes = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        _of_thread[self._thread] = self
        self._thread.start()

    def advance(self, calls: int = 1) -> None:
        """Let it make so many calls, and run up to the one after."""
        for _ in range(calls):
            if self.is_done:
                break
            self._go.release()
            assert self._stopped.acquire(timeout=STUCK_S), "the process waits for something else than its turn"
        if self.is_done:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        while not self.is_done:
            self.advance()

    def crash(self) -> None:
        """End it where it is."""
        self._crashes = True
        self.finish()

    def wait_for_turn(self) -> None:
        if self.is_atomic:
            return
        self._stopped.release()
        self._go.acquire()
        if self._crashes:
            raise Crash

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self._crashes:
                self._run()
        except Crash:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.is_done = True
            del _of_thread[self._thread]
            self._stopped.release()


_of_thread: dict[threading.Thread, Process] = {}


class SteppedStore:
    """A store whose calls wait for their turn, in threads of a Process; others call it at once.

    Args: before: called before each call that deletes, with its kind and key."""

    name = "stepped"
    keeps_bytes = False

    def __init__(self, store: ChunkStore, before_delete: Callable[[str], None]) -> None:
        self._store = store
        self._before_delete = before_delete

    @property
    def heard_s(self) -> float:
        return self._store.heard_s

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        _turn()
        return self._store.put(root, name, data, replace=replace)

    def get(self, root: str, name: bytes) -> bytes:
        _turn()
        return self._store.get(root, name)

    def has(self, root: str, name: bytes) -> bool:
        _turn()
        return self._store.has(root, name)

    def names(self, root: str) -> Iterator[bytes]:
        yield from _paged(lambda: sorted(self._store.names(root)))

    def delete(self, root: str, name: bytes) -> None:
        _turn()
        self._before_delete(root)
        self._store.delete(root, name)

    def copy(self, source: str, target: str, name: bytes) -> bool:
        _turn()
        return self._store.copy(source, target, name)

    def get_object(self, key: str) -> StoredObject | None:
        _turn()
        return self._store.get_object(key)

    def put_object(self, key: str, data: bytes) -> None:
        _turn()
        self._store.put_object(key, data)

    def create_object(self, key: str, data: bytes) -> bool:
        _turn()
        return self._store.create_object(key, data)

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        _turn()
        return self._store.swap_object(key, data, version)

    def list_objects(self, prefix: str) -> Iterator[str]:
        yield from _paged(lambda: list(self._store.list_objects(prefix)))

    def delete_object(self, key: str) -> None:
        _turn()
        if key.startswith(("manifests/", "profiles/")):
            self._before_delete(key.split("/")[1])
        self._store.delete_object(key)

    def close(self) -> None:
        self._store.close()


def current() -> Process | None:
    """Return the process whose thread this is."""
    return _of_thread.get(threading.current_thread())


def _turn() -> None:
    if (process := current()) is not None:
        process.wait_for_turn()


def _paged(read: Callable[[], list]) -> Iterator:  # type: ignore[type-arg]
    """Entries in order; each page as the store is then, after the last entry of the page before."""
    last = None
    while True:
        _turn()
        page = list(islice((each for each in read() if last is None or each > last), PAGE))
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]
