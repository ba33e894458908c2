"""The table of a sandbox's life: every state with every step."""

from __future__ import annotations

import itertools

import pytest

from sockd.isolation.sandbox.lifecycle import TRANSITIONS, BadTransition, Lifecycle, State, Step

EXPECTED = {
    (State.PRIMED, Step.BECOME): State.STARTING,
    (State.STARTING, Step.READY): State.BUSY,
    (State.BUSY, Step.DONE): State.IDLE,
    (State.IDLE, Step.BEGIN): State.BUSY,
    (State.IDLE, Step.PAUSE): State.PAUSED,
    (State.PAUSED, Step.UNPAUSE): State.IDLE,
    **{(state, Step.DESTROY): State.DEAD for state in State},
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(State, Step)))
def test_a_step_leads_where_the_table_says_or_is_refused(state: State, step: Step) -> None:
    lifecycle = Lifecycle(state)
    if (state, step) in EXPECTED:
        lifecycle.advance(step)
        assert lifecycle.state is EXPECTED[state, step]
        return
    with pytest.raises(BadTransition, match=f"^{step.value} while {state.value}$"):
        lifecycle.advance(step)
    assert lifecycle.state is state


def test_every_state_can_be_reached_and_left_for_death() -> None:
    reached = {State.PRIMED}
    for _ in State:
        reached |= {after for state in reached for after in TRANSITIONS[state].values()}
    assert reached == set(State)
    assert set(TRANSITIONS) == set(State)
    assert set(TRANSITIONS[State.DEAD]) == {Step.DESTROY}
