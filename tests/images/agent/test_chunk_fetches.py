"""Fetches: once per chunk, reads first, attempts again while the store is briefly unavailable."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from sockd.base.errors import SockdError, StoreUnavailable
from sockd.images.agent.chunk_fetches import RESERVED_THREADS, ChunkFetches, Urgency

ROOT = "r1"
DEADLINE_S = 30


class Answers:
    """A waiter that keeps what it is called with."""

    def __init__(self) -> None:
        self.found: list[bytes | None] = []
        self.errors: list[SockdError | None] = []
        self._came = threading.Semaphore(0)

    def __call__(self, data: bytes | None, error: SockdError | None) -> None:
        self.found.append(data)
        self.errors.append(error)
        self._came.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._came.acquire(timeout=DEADLINE_S)


class Source:
    """Chunks whose bytes are their name; `gate` holds fetches up, `refusals` are raised first."""

    def __init__(self) -> None:
        self.fetched: list[bytes] = []
        self.held: set[bytes] = set()
        self.refusals: list[SockdError] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        return name[offset : offset + size] if name in self.held else None

    def has(self, name: bytes) -> bool:
        return name in self.held

    def has_room(self) -> bool:
        return True

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        raise AssertionError("there are no nodes")

    def fetch(self, root: str, name: bytes) -> bytes:
        self.fetched.append(name)
        self.begun.release()
        assert self.gate.wait(DEADLINE_S)
        if self.refusals:
            raise self.refusals.pop(0)
        self.held.add(name)
        return name

    def counters(self) -> dict[str, float]:
        return {}


@pytest.fixture
def source() -> Source:
    return Source()


@contextmanager
def fetching(source: Source, *, prefetches: int = 2, outage_s: float = DEADLINE_S) -> Iterator[ChunkFetches]:
    fetches = ChunkFetches(source, prefetches=prefetches, outage_s=outage_s)
    try:
        yield fetches
    finally:
        source.gate.set()
        fetches.close()


def begun(source: Source, count: int) -> None:
    for _ in range(count):
        assert source.begun.acquire(timeout=DEADLINE_S)


def test_a_chunk_that_several_want_is_fetched_once(source: Source) -> None:
    answers = Answers()
    source.gate.clear()
    with fetching(source) as fetches:
        for _ in range(5):
            fetches.want(ROOT, b"a", Urgency.READ, answers)
        begun(source, 1)
        source.gate.set()
        answers.wait(5)
    assert (source.fetched, answers.found) == ([b"a"], [b"a"] * 5)


def test_prefetches_leave_threads_for_reads(source: Source) -> None:
    answers = Answers()
    source.gate.clear()
    with fetching(source, prefetches=2) as fetches:
        for number in range(20):
            fetches.want(ROOT, b"profile %d" % number, Urgency.PROFILE)
        begun(source, 2)
        for number in range(RESERVED_THREADS):
            fetches.want(ROOT, b"read %d" % number, Urgency.READ, answers)
        begun(source, RESERVED_THREADS)
        assert sorted(source.fetched)[:2] == [b"profile 0", b"profile 1"]
        assert len(source.fetched) == 2 + RESERVED_THREADS


def test_a_read_overtakes_the_prefetch_of_its_chunk_that_has_not_begun(source: Source) -> None:
    answers = Answers()
    source.gate.clear()
    with fetching(source, prefetches=1) as fetches:
        for name in (b"a", b"b", b"c"):
            fetches.want(ROOT, name, Urgency.FILL)
        begun(source, 1)
        fetches.want(ROOT, b"c", Urgency.READ, answers)
        begun(source, 1)
        assert source.fetched == [b"a", b"c"]
        source.gate.set()
        answers.wait()
        begun(source, 1)
    assert source.fetched == [b"a", b"c", b"b"], "and is not fetched again"


def test_a_prefetch_of_a_chunk_that_came_meanwhile_fetches_nothing(source: Source) -> None:
    answers = Answers()
    source.held.add(b"a")
    with fetching(source) as fetches:
        fetches.want(ROOT, b"a", Urgency.PROFILE, answers)
        answers.wait()
    assert answers.found == [b"a"], "who waits for it gets its bytes"


def test_a_read_outlasts_a_short_outage(source: Source) -> None:
    answers = Answers()
    source.refusals = [StoreUnavailable("x", "refused")] * 3
    with fetching(source) as fetches:
        fetches.want(ROOT, b"a", Urgency.READ, answers)
        answers.wait()
        assert fetches.counts["failed_StoreUnavailable"] == 3
    assert (answers.found, len(source.fetched)) == ([b"a"], 4)


def test_a_long_outage_is_an_error_and_then_at_once(source: Source) -> None:
    answers = Answers()
    source.refusals = [StoreUnavailable("x", "refused")] * 100
    with fetching(source, outage_s=0.1) as fetches:
        fetches.want(ROOT, b"a", Urgency.READ, answers)
        answers.wait()
        attempts = len(source.fetched)
        fetches.want(ROOT, b"b", Urgency.READ, answers)
        answers.wait()
    assert [type(error) for error in answers.errors] == [StoreUnavailable] * 2
    assert len(source.fetched) == attempts + 1


def test_a_bug_of_the_source_is_an_error_for_those_who_wait(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()

    def broken(root: str, name: bytes) -> bytes:
        raise RuntimeError("broken")

    monkeypatch.setattr(source, "fetch", broken)
    with fetching(source) as fetches:
        fetches.want(ROOT, b"a", Urgency.READ, answers)
        answers.wait()
    [error] = answers.errors
    assert error is not None
    assert "broken" in error.message
