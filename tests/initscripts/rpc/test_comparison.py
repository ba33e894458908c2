"""The comparison runs; what it measures is for benchmarks to say."""

from __future__ import annotations

from sockd_initscripts.rpc.comparison import compare


def test_all_columns_are_measured() -> None:
    times = compare(300_000, 2)
    assert set(times) == {"region", "copied", "app_view", "app_bytes"}
    assert all(milliseconds > 0 for milliseconds in times.values())
