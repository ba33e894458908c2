"""The last reason of each version, for people."""

from __future__ import annotations

from sockd.starts.zygotes.top_levels.reasons import MAX_REASONS, Reasons


class Clock:
    """Seconds that a test counts."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_the_last_reason_of_a_version_is_reported_until_it_is_forgotten() -> None:
    reasons = Reasons()
    reasons.note("p", "no memory")
    reasons.note("p", "no room")
    assert (reasons.find("p"), reasons.find("q")) == ("no room", "")
    reasons.forget("p")
    reasons.forget("p")
    assert reasons.find("p") == ""


def test_a_reason_tells_when_the_next_attempt_is() -> None:
    clock = Clock()
    reasons = Reasons(clock)
    reasons.note("p", "no memory", again_in_s=600)
    assert reasons.find("p") == "no memory; it is tried again in 10 min or after its next cold start"
    clock.now_s += 560
    assert reasons.find("p") == "no memory; it is tried again in 40 s or after its next cold start"
    clock.now_s += 40
    assert reasons.find("p") == "no memory; it is tried again now"


def test_the_oldest_reasons_are_dropped() -> None:
    reasons = Reasons()
    for number in range(MAX_REASONS + 1):
        reasons.note(str(number), "no memory")
        reasons.note("1", "no room")
    assert (reasons.find("0"), reasons.find("1"), reasons.find("3")) == ("", "no room", "no memory")
