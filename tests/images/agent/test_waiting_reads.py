"""Reads that wait for chunks which do not come: how long, and what those after them do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sockd.base.errors import SockdError, StoreUnavailable
from sockd.images.agent.waiting_reads import WaitingRead, WaitingReads

STALL_S = 60.0


class Reads:
    """The reads of an agent whose answers are written to a pipe."""

    def __init__(self) -> None:
        self._answers, self._device = os.pipe2(os.O_CLOEXEC)
        self._unique = 0
        self.last_arrival_s = 0.0
        self.reported: list[SockdError] = []
        self.waiting = WaitingReads(
            "s3://bucket/", STALL_S, lambda: self.last_arrival_s, lambda image, error: self.reported.append(error)
        )

    def begin(self, image: str = "image", *, ago_s: float = 0.0) -> None:
        """A read that has begun so long ago."""
        self._unique += 1
        read = WaitingRead(self._device, self._unique, image, [None], 1)
        read.since_s -= ago_s
        self.waiting.add(read)

    def stall(self) -> None:
        """A read waits in vain."""
        self.begin(ago_s=2 * STALL_S)
        assert os.read(self._answers, 4096)

    def close(self) -> None:
        self.waiting.close()
        os.close(self._answers)
        os.close(self._device)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    monkeypatch.setattr(WaitingReads, "QUICK_S", STALL_S)
    reads = Reads()
    yield reads
    reads.close()


def test_once_a_read_has_waited_in_vain_the_next_of_its_image_fail_at_once(reads: Reads) -> None:
    reads.stall()
    for _ in range(5):
        reads.begin()
    assert len(reads.waiting) == 0 and reads.waiting.counts["failed_at_once"] == 5
    assert [type(error) for error in reads.reported] == [StoreUnavailable] * 6
    assert all("s3://bucket/ is unavailable" in error.message for error in reads.reported)


def test_reads_of_other_images_wait(reads: Reads) -> None:
    reads.stall()
    reads.begin("another")
    assert len(reads.waiting) == 1


def test_reads_wait_again_once_a_chunk_has_come(reads: Reads) -> None:
    reads.stall()
    reads.last_arrival_s = time.monotonic()
    reads.begin()
    assert len(reads.waiting) == 1


def test_a_read_a_while_after_the_last_failure_waits(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    reads.stall()
    monkeypatch.setattr(WaitingReads, "QUICK_S", 0.0)
    reads.begin()
    reads.begin()
    assert len(reads.waiting) == 2


def test_reads_fail_at_once_for_no_longer_than_one_has_waited(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    reads.stall()
    monkeypatch.setattr(reads.waiting, "_stall_s", 0.0)
    reads.begin(ago_s=-1.0)
    monkeypatch.setattr(reads.waiting, "_stall_s", STALL_S)
    assert reads.waiting.counts["failed_at_once"] == 0
