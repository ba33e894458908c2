"""How long a connection may wait for its peer, and how it ends when that takes longer, or when its place is needed.

A layer of `Connection`, above its body's room: no request needs a timer. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sockd.http.server.bounds.body_room import BodyRoom
from sockd.http.server.messages.refusals import NO_ROOM, TOO_MANY, TOO_SLOW, Refusal
from sockd.http.server.outgoing import Budgets
from sockd.http.server.states import BETWEEN, ENDED, UNBEGUN, UNFINISHED, Flow, Input, Output


class Allowing(Budgets, Protocol):
    """The server, as far as it says how long its connections may take."""

    @property
    def allowed_s(self) -> Mapping[Input, float]:
        """How long a connection may be in each state."""


class Patience(BodyRoom):
    """The part of a connection that the server asks when time or places run out."""

    server: Allowing

    def refuse(self, refusal: Refusal) -> None:
        """Close, and say why if that is the next thing that the client expects to read."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Close now, whatever is owed."""
        raise NotImplementedError

    @property
    def deadline_s(self) -> float:
        """By the loop's clock, when `give_up` is due, so that no request needs a timer; infinite if nothing is waited for."""
        input_s = self.since_s + self.server.allowed_s[self.input]
        return input_s if self.output is Output.TAKEN else min(input_s, self.taken_s + self.limits.stall_s)

    @property
    def owed_nothing(self) -> bool:
        """No request has been read to the end of its head and not been answered."""
        return not (self.exchanges or self.reading or self.has_unread or self.input in ENDED)

    def has_been_idle(self, idle_s: float) -> bool:
        """Return whether the client is owed no answer and has sent nothing for so many seconds."""
        is_idle = self.owed_nothing and self.input in (Input.CONNECTED, Input.IDLE)
        return is_idle and self._loop.time() - self.since_s >= idle_s

    @property
    def waits_for_its_peer(self) -> bool:
        """For nothing else: its only request has not come whole, or its client does not take the answer."""
        if self.output is not Output.TAKEN:
            return self.is_slow
        return self.input in UNFINISHED and all(exchange is self.reading for exchange in self.exchanges)

    def make_way(self) -> None:
        """Close, so that another connection gets the place. A client that has begun a request gets an error first."""
        if self.output is not Output.TAKEN:
            self.transport.abort()
            return
        reading = self.reading
        has_begun = self.input is not Input.CONNECTED and self.input not in BETWEEN
        if has_begun and (reading is None or reading.stage in UNBEGUN):
            self.transport.write(TOO_MANY.response)
        self.abandon()

    def give_up(self) -> None:
        """A deadline has passed."""
        if self.output is not Output.TAKEN and self.taken_s + self.limits.stall_s < self._loop.time():
            self.transport.abort()
        elif self.is_late:
            pass  # it is us who are late
        elif self.input is Input.ROOM_AWAITED:
            if self.reading is None or not self.reading.give_way():
                self.refuse(NO_ROOM)  # there was none for this body for as long as it may take
        elif self.input in (Input.CONNECTED, Input.IDLE):
            self.abandon()  # idle, or a browser's speculative connection: nothing to answer
        elif self.flow is Flow.READ:
            self.refuse(TOO_SLOW)
