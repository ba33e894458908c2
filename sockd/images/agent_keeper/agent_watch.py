"""Whether the agent answers, asked while somebody may wait for it: a process that is stopped does not end by itself.

POLICY: one question soon after an image was used, and none before that has its answer; so an idle worker asks nothing. The link
that is asked ends a process that does not answer (`AgentLink.ask`).

Owns the timer and the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

PERIOD_S = 1.0
"""From a use of an image to the question."""


class AgentWatch:
    """`look` when an image is used; `aclose`."""

    def __init__(self, ask: Callable[[], Coroutine[None, None, None]]) -> None:
        """Args: ask: returns when an agent has answered, or there is none."""
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """An image is mounted, or a function in one is called. Cheap, as it is done for every request."""
        if self._timer is None and self._asking is None:
            self._timer = self._loop.call_later(PERIOD_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._asking = self._loop.create_task(self._ask(), name="watch of the agent of images")
        self._asking.add_done_callback(self._answered)

    def _answered(self, asking: asyncio.Task[None]) -> None:
        self._asking = None

    async def aclose(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
