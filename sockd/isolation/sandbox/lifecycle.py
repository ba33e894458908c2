"""The state machine of a sandbox; a transition that is not in the table is a bug of the caller.

PRIMED ──become──► STARTING ──ready──► BUSY ──done──► IDLE ──pause──► PAUSED
  (a spare)                              ▲              │ ▲              │
                                         └────begin─────┘ └────unpause───┘
every state ──destroy──► DEAD
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.Enum):
    __hash__ = object.__hash__  # Enum's own is Python code, and this one is looked up four times a request

    PRIMED = "primed"
    STARTING = "starting"
    BUSY = "busy"
    IDLE = "idle"
    PAUSED = "paused"
    DEAD = "dead"


class Step(enum.Enum):
    __hash__ = object.__hash__

    BECOME = "become"
    READY = "ready"
    BEGIN = "begin"
    DONE = "done"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    DESTROY = "destroy"


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.PRIMED: {Step.BECOME: State.STARTING, Step.DESTROY: State.DEAD},
    State.STARTING: {Step.READY: State.BUSY, Step.DESTROY: State.DEAD},
    State.BUSY: {Step.DONE: State.IDLE, Step.DESTROY: State.DEAD},
    State.IDLE: {Step.BEGIN: State.BUSY, Step.PAUSE: State.PAUSED, Step.DESTROY: State.DEAD},
    State.PAUSED: {Step.UNPAUSE: State.IDLE, Step.DESTROY: State.DEAD},
    State.DEAD: {Step.DESTROY: State.DEAD},
}


class BadTransition(Exception):
    """A step that the table does not allow in this state: `pause while dead`."""


@dataclass(eq=False, slots=True)
class Lifecycle:
    """The state of one sandbox, which the sandbox and its conversation both change."""

    state: State = State.STARTING

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    def advance(self, step: Step) -> None:
        """Enter the state after `step`. Raises: BadTransition."""
        try:
            self.state = TRANSITIONS[self.state][step]
        except KeyError:
            raise BadTransition(f"{step.value} while {self.state.value}") from None
