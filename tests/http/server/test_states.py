"""The table of a connection's states: every event in every state."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import pytest

from sockd.http.server import states
from sockd.http.server.limits import ConnectionLimits, allowed_s
from sockd.http.server.states import BadTransition, Event, Flow, Input, Output, Payload, Stage

KINDS: tuple[type[enum.Enum], ...] = (Input, Output, Flow, Payload, Stage)
FIRST: dict[type[enum.Enum], enum.Enum] = {
    Input: Input.CONNECTED,
    Output: Output.TAKEN,
    Flow: Flow.READ,
    Payload: Payload.COLLECTED,
    Stage: Stage.WAITING,
}
EVENTS: list[Event[Any]] = [each for each in vars(states).values() if isinstance(each, Event)]


def events_of(kind: type[enum.Enum]) -> list[Event[Any]]:
    """The rows whose states are of one kind."""
    return [event for event in EVENTS if isinstance(next(iter(event)), kind)]


def pairs() -> Iterator[tuple[Event[Any], enum.Enum]]:
    for kind in KINDS:
        yield from ((event, state) for event in events_of(kind) for state in kind)


@pytest.mark.parametrize(("event", "state"), list(pairs()), ids=lambda each: getattr(each, "name", str(each)))
def test_an_event_leads_to_a_state_of_its_kind_or_is_refused_by_name(event: Event[Any], state: enum.Enum) -> None:
    if state in event:
        assert type(event[state]) is type(state)
        return
    with pytest.raises(BadTransition, match=f"^{event.name} while {state.value}$"):
        event[state]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_of_a_kind_can_be_reached_from_its_first(kind: type[enum.Enum]) -> None:
    reached = {FIRST[kind]}
    for _ in kind:
        reached |= {event[state] for event in events_of(kind) for state in reached if state in event}
    assert reached == set(kind)


def test_nothing_leads_out_of_a_state_in_which_all_is_over() -> None:
    ends = {Input.CLOSED, Stage.ANSWERED, Stage.LOST, Payload.WHOLE}
    for event, state in pairs():
        if state in ends:
            assert event.get(state, state) is state
    leads_to = {event[Input.DRAINING] for event in events_of(Input) if Input.DRAINING in event}
    assert leads_to == {Input.DRAINING, Input.CLOSED}


def test_a_connection_that_waits_for_its_peer_has_a_deadline_and_no_other_has() -> None:
    limits = ConnectionLimits(head_s=1, body_s=2)
    ours = {Input.SERVING, Input.DRAINING, Input.CLOSED}
    found = allowed_s(limits, 3)
    assert {state for state in Input if found[state] == float("inf")} == ours
    assert {found[state] for state in set(Input) - ours} == {1, 2, 3}
