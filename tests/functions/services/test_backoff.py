"""When a service that has failed is started again."""

from __future__ import annotations

from sockd.functions.services.backoff import FIRST_S, LONGEST_S, STABLE_S, Backoff


def test_the_delay_doubles_with_each_failure_in_a_row_up_to_its_bound() -> None:
    backoff, delays = Backoff(), []
    for _ in range(20):
        backoff.note_failure(0.0)
        delays.append(backoff.left_s(0.0))
    assert delays[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert delays[-1] == LONGEST_S and delays == sorted(delays)


def test_a_program_that_ran_for_long_is_started_again_as_after_its_first_failure() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.note_failure(0.0)
    backoff.note_failure(0.0, ran_s=STABLE_S)
    assert backoff.left_s(0.0) == FIRST_S


def test_no_delay_is_left_after_its_end_or_for_another_version() -> None:
    backoff = Backoff()
    assert backoff.left_s(0.0) == 0.0
    backoff.note_failure(0.0)
    assert backoff.left_s(FIRST_S) == 0.0
    backoff.note_failure(0.0)
    backoff.forget()
    assert backoff.left_s(0.0) == 0.0
