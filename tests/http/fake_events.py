"""Events without a store: what the HTTP doors hand over to run later, in their own tests."""

from __future__ import annotations

from collections.abc import Callable

from sockd.base import errors
from sockd.base.telemetry import TraceContext
from sockd.events.event_configs import EventInvokeConfig


class FakeEvents:
    """Accepts everything for a function that is there; `accepted` is what."""

    def __init__(self, check: Callable[[str], object]) -> None:
        """Args: check: raises NoSuchFunction unless there is one of that name."""
        self._check = check
        self.accepted: list[tuple[str, str, bytes, str]] = []
        self.full = False
        self._configs: dict[tuple[str, str], EventInvokeConfig] = {}

    def event_config(self, name: str, qualifier: str) -> EventInvokeConfig | None:
        return self._configs.get((name, qualifier))

    def event_configs(self, name: str) -> list[EventInvokeConfig]:
        return [config for (function, _), config in self._configs.items() if function == name]

    async def put_event_config(self, wanted: EventInvokeConfig) -> EventInvokeConfig:
        self._configs[wanted.function, wanted.qualifier] = wanted
        return wanted

    async def remove_event_config(self, name: str, qualifier: str) -> bool:
        return self._configs.pop((name, qualifier), None) is not None

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
