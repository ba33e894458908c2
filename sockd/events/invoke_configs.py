"""The event-invoke-configs of a worker's functions: checked, stored, and asked for before each attempt of an event.

Owns what is in memory; the backend keeps it for the next daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import BadRequest, NoSuchFunction
from sockd.events.clock import Clock
from sockd.events.destinations import Directories, DirectoryDestination, parse_destination
from sockd.events.event_backend import EventBackend
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.event_records import LATEST

MOST_RETRIES = 100
MOST_AGE_S = 366 * 24 * 3600


class InvokeConfigs:
    """Configs by function and qualifier; an empty qualifier is $LATEST."""

    def __init__(
        self,
        backend: EventBackend,
        check_function: Callable[[str, str], object],
        directories: Directories,
        clock: Clock,
    ) -> None:
        """Args: check_function: raises NoSuchFunction unless there is this one in this version."""
        self._backend = backend
        self._check_function = check_function
        self._directories = directories
        self._clock = clock
        self._configs: dict[tuple[str, str], EventInvokeConfig] = {}

    def take_up(self, stored: Iterable[EventInvokeConfig]) -> None:
        """Follow the configs that the backend has now, and no others."""
        self._configs = {(each.function, each.qualifier): each for each in stored}

    def get(self, function: str, qualifier: str) -> EventInvokeConfig | None:
        """How the events of a function, or of one version of it, are to end; None: as the worker's settings say."""
        return self._configs.get((function, qualifier or LATEST))

    def all_of(self, function: str) -> list[EventInvokeConfig]:
        """All of a function, by qualifier."""
        found = (each for (name, _), each in self._configs.items() if name == function)
        return sorted(found, key=lambda each: each.qualifier)

    async def put(self, wanted: EventInvokeConfig) -> EventInvokeConfig:
        """Set it, with the time. Raises: NoSuchFunction; BadRequest for a destination that is not there or cannot be."""
        self._check_function(wanted.function, wanted.qualifier)
        for key, value, most in (
            ("max_retries", wanted.max_retries, MOST_RETRIES),
            ("max_age_s", wanted.max_age_s, MOST_AGE_S),
        ):
            if value is not None and not 0 <= value <= most:
                raise BadRequest(f"{key} must be from 0 to {most}")
        for destination in (wanted.on_success, wanted.on_failure):
            if destination:
                await self._check_destination(destination, wanted.function)
        config = msgspec.structs.replace(wanted, modified_at=self._clock.now())
        await self._backend.configure(config)
        self._configs[config.function, config.qualifier] = config
        return config

    async def remove(self, function: str, qualifier: str) -> bool:
        """Back to the defaults; returns whether there was one."""
        key = (function, qualifier or LATEST)
        await self._backend.unconfigure(*key)
        return self._configs.pop(key, None) is not None

    def forget(self, function: str, qualifier: str = "") -> None:
        """Drop those of a function, or of one version of it, that the backend has forgotten."""
        for key in [key for key in self._configs if key[0] == function and qualifier in ("", key[1])]:
            del self._configs[key]

    async def _check_destination(self, text: str, function: str) -> None:
        """Args: function: whose events would end there. Raises: BadRequest."""
        target = parse_destination(text)
        if isinstance(target, DirectoryDestination):
            await in_thread(self._directories.check, target.name)
            return
        if target.name == function:
            raise BadRequest(
                f"the destination {text[:200]!r} is the function itself, so that each event of it would bring another; name "
                "another function, or say directory:NAME to have files written"
            )
        try:
            self._check_function(target.name, target.qualifier)
        except NoSuchFunction as error:
            raise BadRequest(
                f"the destination {text[:200]!r} is not there: {error.message}; deploy the function first, or say "
                "directory:NAME to have files written"
            ) from None
