"""Events over a real file, with functions that do what a test says, on a clock that it turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sockd.base import errors
from sockd.base.config import EventsConfig
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.events.destinations import Directories
from sockd.events.dispatcher import Functions
from sockd.events.event_backend import Recovered
from sockd.events.events import Events
from sockd.http.server.messages.answers import error_body
from tests.events.backends import Backends, SqliteBackends
from tests.support.fake_clock import FakeClock, until


class FakeFunctions:
    """Functions by name: each is what it does with a payload; `ran` is what was asked of them, and when."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.do: dict[str, Callable[[bytes], bytes]] = {}
        self.ran: list[tuple[str, bytes, float]] = []
        self.ids: set[bytes] = set()
        self.holding: asyncio.Event | None = None
        self.incarnations: dict[str, str] = {}
        self.places = 10
        self.at_once = self.most_at_once = 0

    async def invoke(self, request: InvokeRequest) -> Invocation:
        self.ran.append((request.name, request.payload, self.clock.monotonic()))
        self.ids.add(request.id)
        self.check(request.name, "")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.holding is not None:
                await self.holding.wait()
            return Invocation(self.do[request.name](request.payload), "warm", "s", "7")
        finally:
            self.at_once -= 1

    def incarnation(self, name: str) -> str:
        return self.incarnations.get(name, "first")

    def check(self, name: str, qualifier: str) -> None:
        if name not in self.do:
            raise errors.NoSuchFunction(f"no function {name!r}")

    def times(self, name: str = "f") -> list[float]:
        """When a function ran, in seconds after the first time."""
        moments = [moment for ran, _, moment in self.ran if ran == name]
        return [moment - moments[0] for moment in moments]


class Harness:
    """Events over a backend, functions and a clock."""

    recovered: Recovered
    """What the last daemon to be opened has found."""

    def __init__(self, path: Path, backends: Backends | None = None, **config: Any) -> None:
        """Args: backends: None: on a file below `path`."""
        self.path = path
        self.backends = backends or SqliteBackends(path)
        self.clock = FakeClock()
        self.functions = FakeFunctions(self.clock)
        self.config = EventsConfig(**config)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Events]:
        """A daemon's life; leaving it is SIGTERM."""
        functions, backend = self.functions, await self.backends.open(self.config)
        self.recovered = await backend.recover(self.clock.now())
        events = Events(
            backend,
            self.recovered,
            Functions(
                functions.invoke, functions.check, lambda name: functions.places, error_body, functions.incarnation
            ),
            Directories(self.path / "directories", {"missing": str(self.path / "missing")}),
            self.config,
            self.clock,
        )
        events.start()
        try:
            yield events
        finally:
            if functions.holding is not None:
                functions.holding.set()
            await events.aclose()

    def record(self, directory: str, event_id: str) -> Any:
        return json.loads((self.path / "directories" / directory / f"{event_id}.json").read_bytes())


def fails(error: Callable[[], errors.SockdError], times: int = 1000) -> Callable[[bytes], bytes]:
    """A function that fails so many times, then answers "ok"."""
    left = [times]

    def do(payload: bytes) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            raise error()
        return b'"ok"'

    return do


def raised() -> errors.SockdError:
    return errors.FunctionFailed("ValueError", "no good", ["line 1"])


def busy() -> errors.SockdError:
    return errors.TooManyRequests("10 running")


async def settled(events: Events) -> None:
    """Until nothing runs."""
    await asyncio.sleep(0)  # what has ended a run has yet to look who is next
    await asyncio.sleep(0)
    await until(lambda: not events.depth()["running"])
    await asyncio.sleep(0)


async def all_over(events: Events, clock: FakeClock, step_s: float = 1.0) -> None:
    """Let time pass until every event is over."""
    async with asyncio.timeout(15):
        while sum(events.depth().values()):
            await settled(events)
            clock.pass_by(clock.next_in() or step_s)
