"""Events without a store: what the HTTP APIs hand over to run later, in their own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sockd.base import errors
from sockd.base.telemetry import TraceContext
from sockd.events.dead_letters import missing_event
from sockd.events.event_configs import EventInvokeConfig


class FakeDeadLetters:
    """Dead letters in memory; those that are to run again, or are deleted, are gone."""

    def __init__(self, dead: dict[str, str]) -> None:
        """Args: dead: their functions, by id."""
        self._dead = dead

    async def last(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        found = [(id_, name) for id_, name in self._dead.items() if function in (None, name)]
        return [{"id": id_, "function": name, "died_at": float(id_)} for id_, name in reversed(found[-limit:])]

    async def retry(self, function: str | None, event_id: str | None) -> int:
        found = [id_ for id_, name in self._dead.items() if function in (None, name) and event_id in (None, id_)]
        for id_ in found:
            del self._dead[id_]
        return len(found)

    discard = retry


class FakeInvokeConfigs:
    """Configs in memory, of any function."""

    def __init__(self) -> None:
        self._configs: dict[tuple[str, str], EventInvokeConfig] = {}

    def get(self, function: str, qualifier: str) -> EventInvokeConfig | None:
        return self._configs.get((function, qualifier))

    def all_of(self, function: str) -> list[EventInvokeConfig]:
        return [config for (name, _), config in self._configs.items() if name == function]

    async def put(self, wanted: EventInvokeConfig) -> EventInvokeConfig:
        self._configs[wanted.function, wanted.qualifier] = wanted
        return wanted

    async def remove(self, function: str, qualifier: str) -> bool:
        return self._configs.pop((function, qualifier), None) is not None


class FakeEvents:
    """Accepts everything for a function that is there; `accepted` is what."""

    def __init__(self, check: Callable[[str], object]) -> None:
        """Args: check: raises NoSuchFunction unless there is one of that name."""
        self._check = check
        self.accepted: list[tuple[str, str, bytes, str]] = []
        self.full = False
        self.invoke_configs = FakeInvokeConfigs()
        self.dead: dict[str, str] = {}
        """Dead letters: the function of each, by id."""
        self.dead_letters = FakeDeadLetters(self.dead)

    def waiting(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        return []

    async def show(self, event_id: str) -> dict[str, Any]:
        if event_id not in self.dead:
            raise missing_event(event_id)
        return {"id": event_id, "function": self.dead[event_id]}

    async def accept(
        self,
        name: str,
        qualifier: str,
        payload: bytes,
        *,
        source: str,
        retry_key: str = "",
        trace: TraceContext | None = None,
    ) -> str:
        self._check(name)
        if self.full:
            raise errors.TooManyEvents("100000 events wait")
        self.accepted.append((name, qualifier, payload, source))
        return f"{len(self.accepted):08}-0000-4000-8000-000000000000"
