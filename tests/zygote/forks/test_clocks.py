"""The clock of `logging` begins again in each fork, in the unit that the interpreter's version keeps it in."""

from __future__ import annotations

import logging
import sys
import time
import types
from collections.abc import Callable

import pytest

from sockd_zygote.forks import clocks


@pytest.mark.parametrize(("kept", "now"), [(1.5, time.time), (1_500_000_000, time.time_ns)])
def test_it_begins_again_in_the_unit_that_it_had(
    kept: float, now: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("logging")
    module._startTime = kept  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "logging", module)
    (restart,) = clocks.with_code()
    before = now()
    restart()
    started = module._startTime
    assert type(started) is type(kept) and before <= started <= now()


def test_records_of_this_pythons_logging_count_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = type(logging._startTime)  # type: ignore[attr-defined]
    monkeypatch.setattr(logging, "_startTime", unit(0))
    (restart,) = clocks.with_code()
    assert logging.makeLogRecord({}).relativeCreated > 1e12  # since 1970, in milliseconds
    restart()
    assert 0 <= logging.makeLogRecord({}).relativeCreated < 60_000


@pytest.mark.parametrize("module", [None, types.ModuleType("logging")])
def test_without_logging_a_fork_has_nothing_to_do(
    module: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module is None:
        monkeypatch.delitem(sys.modules, "logging")
    else:
        monkeypatch.setitem(sys.modules, "logging", module)  # a package's own of this name
    assert clocks.with_code() == []
