"""Repeated warnings: the first at once, the rest as a count."""

from __future__ import annotations

import logging

import pytest

from sockd.events.repeated_warnings import INTERVAL_S, MOST, RepeatedWarnings
from tests.support.fake_clock import FakeClock

LOG = logging.getLogger("tests.repeated_warnings")


def test_a_subject_has_one_line_at_once_and_one_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    warnings = RepeatedWarnings(LOG, clock)
    for number in range(18_000):
        warnings.warn("f failed", f"event {number} failed")
    warnings.warn("g failed", "event of g failed")
    assert caplog.messages == ["event 0 failed", "event of g failed"]
    clock.pass_by(INTERVAL_S)
    assert caplog.messages[2:] == ["f failed: 17999 more within 60 s, the last: event 17999 failed"]
    warnings.warn("f failed", "event a failed")
    warnings.warn("g failed", "event b failed")
    assert caplog.messages[3:] == ["event b failed"]
    warnings.close()
    assert caplog.messages[4:] == ["f failed: 1 more within 60 s, the last: event a failed"]
    warnings.close()
    assert (len(caplog.messages), clock.next_in()) == (5, None)


def test_nothing_is_left_of_a_quiet_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    warnings = RepeatedWarnings(LOG, clock)
    warnings.warn("f", "one")
    clock.pass_by(INTERVAL_S)
    assert clock.next_in() is None
    warnings.warn("f", "two")
    assert caplog.messages == ["one", "two"]


def test_subjects_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(LOG, FakeClock())
    for number in range(MOST + 100):
        warnings.warn(f"f{number}", "no")
    assert len(caplog.messages) == MOST + 1
    warnings.close()
    assert caplog.messages[-1] == "others: 99 more within 60 s, the last: no"
