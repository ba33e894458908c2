"""The states of an HTTP connection and of its requests, and the one table of their transitions, as in h11.

A connection has two sides that proceed independently. What it reads (`Input`):

    CONNECTED ─bytes came─► FIRST_HEAD ─head read─┐
                                                  ▼
      ┌──────► IDLE ──bytes came──► HEAD ──────► BODY ──whole─────────► SERVING ──answered──► IDLE
      │                              ▲            │ part read              │ ▲
      │                              │            ▼                        │ │
      │                              │       BODY_AWAITED ──whole──────────┼─┘
      │                              │            │ ▲                      │
      │                              │   no room  ▼ │ room came            │
      │                              │       ROOM_AWAITED                  │
      │                              └───────────bytes came────────────────┘
    every state ──input ended──► DRAINING ──dropped──► CLOSED

and what its peer takes of the answers (`Output`). `Flow` says whether the socket is read from. A request has two
sides likewise: what comes of its body (`Payload`), and its answer (`Stage`).

Pure. A transition that is not in the table is a bug of the caller.
"""

from __future__ import annotations

import enum
from typing import TypeVar


class Input(enum.Enum):
    """What a connection reads next."""

    __hash__ = object.__hash__  # Enum's own is Python code, and states are looked up for each request

    CONNECTED = "connected"
    """Nothing has come yet."""
    FIRST_HEAD = "reading the first head"
    HEAD = "reading a head"
    """Requests before it may still be owed an answer."""
    BODY = "reading a body"
    """The head is complete, and the rest of the chunk is being read."""
    BODY_AWAITED = "waiting for the rest of a body"
    ROOM_AWAITED = "waiting for room for a body"
    """The socket is not read from until the buffer budget has room."""
    SERVING = "serving"
    """Each request that has begun has come whole, and one is owed an answer."""
    IDLE = "idle"
    """As SERVING, and none is owed an answer."""
    DRAINING = "draining"
    """No more is read; the connection closes behind the answers that it owes."""
    CLOSED = "closed"
    """Nothing is owed any more."""


class Output(enum.Enum):
    """What the peer has taken of the answers that were written."""

    __hash__ = object.__hash__

    TAKEN = "taken"
    """All of it."""
    WRITING = "writing"
    """Not all of it."""
    FULL = "full"
    """So little that no more is written."""


class Flow(enum.Enum):
    """Whether the socket is read from."""

    __hash__ = object.__hash__

    READ = "read"
    HELD = "held"
    """Not until the connection's turn comes."""
    PAUSED = "paused"
    """Not until the connection resumes reading."""


class Payload(enum.Enum):
    """What becomes of a request's body."""

    __hash__ = object.__hash__

    COLLECTED = "collected"
    """The answer begins when the body is whole."""
    STREAMED = "streamed"
    """The answer may begin before that."""
    DROPPED = "dropped"
    """The answer does not need it. What comes is counted in `Exchange.discarded_bytes` and dropped."""
    WHOLE = "whole"


class Stage(enum.Enum):
    """How far the answer to a request is."""

    __hash__ = object.__hash__

    WAITING = "waiting"
    RUNNING = "running"
    """`Exchange.start` has been called."""
    ANSWERING = "answering"
    """The head of the answer has been written."""
    ANSWERED = "answered"
    LOST = "lost"
    """No answer will be read."""


S = TypeVar("S", bound=enum.Enum)


class BadTransition(Exception):
    """An event that the table does not allow in this state: `head read while idle`."""


class Event(dict[S, S]):
    """A row of the table: for each state in which the event may occur, the state after it.

    A row is a mapping, so that a transition costs a request no call of a function."""

    def __init__(self, name: str, after: dict[S, S]) -> None:
        super().__init__(after)
        self.name = name

    def __missing__(self, state: S) -> S:
        raise BadTransition(f"{self.name} while {state.value}")


BETWEEN = frozenset({Input.SERVING, Input.IDLE})
"""Nothing has come of a next request."""
IN_BODY = frozenset({Input.BODY, Input.BODY_AWAITED, Input.ROOM_AWAITED})
UNFINISHED = frozenset({Input.BODY_AWAITED, Input.ROOM_AWAITED})
"""A part of a body has come."""
ENDED = frozenset({Input.DRAINING, Input.CLOSED})
"""Nothing more is read."""
UNBEGUN = frozenset({Stage.WAITING, Stage.RUNNING})
"""Nothing of the answer has been written."""
OVER = frozenset({Stage.ANSWERED, Stage.LOST})
"""Nothing more of the answer may be written."""

_HEADS = {Input.FIRST_HEAD: Input.FIRST_HEAD, **dict.fromkeys((Input.HEAD, *BETWEEN), Input.HEAD)}

BYTES_CAME = Event("bytes came", {Input.CONNECTED: Input.FIRST_HEAD, **_HEADS, Input.BODY_AWAITED: Input.BODY_AWAITED})
REQUEST_BEGUN = Event("request begun", _HEADS)
HEAD_READ = Event("head read", {Input.FIRST_HEAD: Input.BODY, Input.HEAD: Input.BODY})
PART_READ = Event("part read", {Input.BODY: Input.BODY_AWAITED})
NO_ROOM_LEFT = Event("no room left", {Input.BODY_AWAITED: Input.ROOM_AWAITED})
ROOM_CAME = Event("room came", {Input.ROOM_AWAITED: Input.BODY_AWAITED})
BODY_WHOLE = Event("whole", dict.fromkeys((Input.BODY, Input.BODY_AWAITED), Input.SERVING))
ALL_ANSWERED = Event("answered", {Input.SERVING: Input.IDLE})
INPUT_ENDED = Event("input ended", dict.fromkeys(set(Input) - {Input.CLOSED}, Input.DRAINING))
DROPPED = Event("dropped", dict.fromkeys(Input, Input.CLOSED))

SOME_UNSENT = Event(
    "some unsent", {Output.TAKEN: Output.WRITING, Output.WRITING: Output.WRITING, Output.FULL: Output.FULL}
)
ALL_SENT = Event("all sent", dict.fromkeys(Output, Output.TAKEN))
FULL = Event("full", {Output.WRITING: Output.FULL})
NOT_FULL = Event("not full", {Output.FULL: Output.WRITING, Output.TAKEN: Output.TAKEN})

HELD = Event("held", {Flow.READ: Flow.HELD})
TURN_ENDED = Event("turn ended", {Flow.HELD: Flow.READ})
PAUSED = Event("paused", {Flow.READ: Flow.PAUSED, Flow.HELD: Flow.PAUSED})
RESUMED = Event("resumed", {Flow.PAUSED: Flow.READ})

STREAM_BODY = Event("stream body", {Payload.COLLECTED: Payload.STREAMED})
DROP_BODY = Event(
    "drop body", {**dict.fromkeys(set(Payload) - {Payload.WHOLE}, Payload.DROPPED), Payload.WHOLE: Payload.WHOLE}
)
PAYLOAD_WHOLE = Event("payload whole", dict.fromkeys(set(Payload) - {Payload.WHOLE}, Payload.WHOLE))

STARTED = Event("started", {Stage.WAITING: Stage.RUNNING})
BEGUN = Event("begun", {Stage.RUNNING: Stage.ANSWERING})
FINISHED = Event("finished", {Stage.ANSWERING: Stage.ANSWERED})
ABANDONED = Event("abandoned", dict.fromkeys(set(Stage) - OVER, Stage.LOST))
