"""The last hour, minute by minute: what counts in which minute, what is dropped, and how it outlives the worker."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sockd.observe import history_keeper
from sockd.observe.history import MINUTES, MOST_FUNCTIONS, WORKER, History, Minute, together
from sockd.observe.history_keeper import HistoryKeeper, load, publish
from sockd.observe.recent import SLOT_NS, Recent

pytestmark = pytest.mark.anyio
S = 1_000_000_000
MS = 1_000_000
MINUTE = 28_000_000
NOW_S = MINUTE * 60.0
"""The beginning of a minute."""


def made() -> tuple[Recent, History]:
    """A history at whose clocks 0 of CLOCK_MONOTONIC is `NOW_S`."""
    history = History(offset_s=lambda: NOW_S)
    return Recent(history.add), history


def observed(recent: Recent, history: History, name: str, at_s: float, count: int = 1, failed: int = 0) -> None:
    """Requests of 10 ms in one slot."""
    for number in range(count):
        recent.observe(name, int(at_s * S), 10 * MS, number == 0, number < failed)


def test_a_minute_has_the_numbers_of_its_slots_for_each_function_and_for_all() -> None:
    recent, history = made()
    observed(recent, history, "f", 1, count=3, failed=1)
    observed(recent, history, "f", 31, count=2)
    observed(recent, history, "g", 59, count=4)
    observed(recent, history, "f", 61)
    recent.settle(66 * S)
    assert history.close(NOW_S + 66)
    (at_s, f), (_, worker) = history.of("f", NOW_S + 66)[-1], history.of(WORKER, NOW_S + 66)[-1]
    assert at_s == NOW_S and f is not None and worker is not None
    assert (f.count, f.failed, f.cold) == (5, 1, 2)
    assert (worker.count, worker.failed, worker.cold) == (9, 1, 3)
    assert f.p50_ns == pytest.approx(10 * MS, rel=0.05) == f.p99_ns


def test_no_request_is_counted_twice_or_lost() -> None:
    recent, history = made()
    for second in range(300):
        observed(recent, history, "f", second)
        if second % 7 == 0:
            recent.settle(second * S)
            history.close(NOW_S + second)
    recent.settle(400 * S)
    history.close(NOW_S + 400)
    counts = [minute.count if minute else 0 for _, minute in history.of("f", NOW_S + 360)]
    assert counts == [*[0] * (MINUTES - 6), 60, 60, 60, 60, 60, 0]


def test_it_has_an_hour_and_of_a_minute_the_busiest_functions_only() -> None:
    recent, history = made()
    for number in range(MOST_FUNCTIONS + 5):
        observed(recent, history, f"f{number}", 1, count=1 + (number >= 5))
    recent.settle(10 * S)
    history.close(NOW_S + 60)
    row = history.rows()[MINUTE]
    assert len(row) == MOST_FUNCTIONS + 1 and "f0" not in row and "f5" in row
    assert row[WORKER].count == 5 + 2 * MOST_FUNCTIONS
    history.close(NOW_S + 60 * MINUTES)
    assert history.rows()
    history.close(NOW_S + 60 * MINUTES + 60)
    assert not history.rows()


def test_a_clock_that_is_set_back_leaves_no_minutes_that_are_to_come() -> None:
    history = History({MINUTE + 100: {"f": Minute(1, 0, 0, 1, 1)}})
    history.close(NOW_S)
    assert not history.rows()


def test_a_removed_function_is_forgotten_and_the_worker_s_numbers_stay() -> None:
    recent, history = made()
    observed(recent, history, "f", 1)
    recent.forget("f")
    history.forget("f")
    history.close(NOW_S + 60)
    assert set(history.rows()[MINUTE]) == {WORKER}
    history = History({MINUTE: {"f": Minute(1, 0, 0, 1, 1)}})
    history.forget("f")
    assert history.of("f", NOW_S + 60)[-1] == (NOW_S, None)


def test_the_two_parts_of_a_minute_with_a_restart_are_one() -> None:
    assert together(Minute(2, 1, 1, 5, 9), Minute(8, 0, 1, 7, 8)) == Minute(10, 1, 2, 7, 8)
    history = History({MINUTE: {"f": Minute(2, 1, 1, 5, 9)}}, offset_s=lambda: NOW_S)
    recent = Recent(history.add)
    observed(recent, history, "f", 1, count=3)
    recent.settle(10 * S)
    history.close(NOW_S + 60)
    row = history.rows()[MINUTE]["f"]
    assert (row.count, row.failed, row.cold) == (5, 1, 2)


async def test_what_was_kept_is_there_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.json"
    monkeypatch.setattr("time.time", lambda: NOW_S + 10)
    monkeypatch.setattr("time.monotonic_ns", lambda: 10 * S)
    recent, history = made()
    keeper = HistoryKeeper(recent, history, path)
    keeper.start()
    observed(recent, history, "f", 9, count=3)
    await keeper.aclose()
    await keeper.aclose()
    assert path.stat().st_mode & 0o777 == 0o600 and [each.name for each in tmp_path.iterdir()] == [path.name]
    (_, minute), *_ = reversed(load(path).of("f", NOW_S + 60))
    assert minute is not None and minute.count == 3


async def test_each_minute_is_written_when_its_last_slot_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S + 66)
    monkeypatch.setattr("time.monotonic_ns", lambda: 66 * S)
    recent, history = made()
    keeper = HistoryKeeper(recent, history, tmp_path / "history.json")
    keeper.start()
    observed(recent, history, "f", 59)
    keeper._minute_over()
    assert keeper._writing is not None
    await keeper._writing
    assert load(tmp_path / "history.json").rows()[MINUTE]["f"].count == 1
    written = keeper._writing
    keeper._minute_over()
    assert keeper._writing is written, "nothing is written while there are no requests"
    (tmp_path / "history.json").unlink()
    await keeper.aclose()
    assert (tmp_path / "history.json").exists(), "the end writes also what an earlier minute could not"


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"format": 1, "minutes": {"x": 1}}', b'{"format": 2, "minutes": {}}']
)
def test_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.json"
    assert not load(path).rows()
    path.write_bytes(content)
    assert not load(path).rows()


async def test_a_full_disk_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, rows: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(history_keeper, "publish", full)
    keeper = HistoryKeeper(*made(), tmp_path / "history.json")
    with caplog.at_level(logging.WARNING):
        await keeper._write({})
        await keeper._write({})
    assert [record.getMessage() for record in caplog.records] == [
        "history.json cannot be written, the page's history will lack these minutes: [Errno 28] No space left on device"
    ]


def test_the_file_of_a_busy_hour_is_less_than_a_megabyte(tmp_path: Path) -> None:
    row = {f"a-function-with-a-long-name-{number}": Minute(1200, 3, 1, 9_000_000, 90_000_000) for number in range(200)}
    publish(tmp_path / "history.json", dict.fromkeys(range(MINUTE, MINUTE + MINUTES), row))
    assert (tmp_path / "history.json").stat().st_size < 1_000_000
    assert SLOT_NS < 60 * S
