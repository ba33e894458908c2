"""Breaks of the checks that decide who may call and manage functions, and what only their owners may see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from sockd.http import replays
from sockd.http.access import basic_keys, keys, signatures
from sockd.http.access.host_check import HostCheck
from sockd.http.aws import access
from sockd.images.registry import destinations, image
from sockd.linux import readiness
from sockd.linux.processes import pidfds
from sockd.observe import log_segments
from sockd.starts.packages import built_names
from tests.support.breaks.breaking import breaks


@breaks("keys-reach-all")
def keys_reach_all() -> None:
    """A key may invoke every function."""
    check = keys.Key.check

    def check_others(self: keys.Key, right: keys.Right, function: str | None) -> None:
        if right != "invoke":
            check(self, right, function)

    keys.Key.check = check_others  # type: ignore[method-assign]


@breaks("any-address", in_tests=True)
def any_address() -> None:
    """A registry may have an import connect to any address."""
    destinations.Destinations.refusal = lambda *_: ""  # type: ignore[method-assign]


@breaks("one-log", in_tests=True)
def one_log() -> None:
    """No function has a share of the kept logs: the oldest records go first, whichever function printed them."""
    log_segments.fair_share = lambda sizes, limit: 0 if sum(sizes) > limit else limit


@breaks("any-configuration", in_tests=True)
def any_configuration() -> None:
    """The configuration of an image may have any size."""
    image.ImageConfig.excess = lambda self: ""  # type: ignore[method-assign]


@breaks("any-modules", in_tests=True)
def any_modules() -> None:
    """A package that was built may hold modules of others."""
    built_names.module_of_another = lambda closure, provided: ""


@breaks("passed-on-keys")
def passed_on_keys() -> None:
    """A function gets the key that a browser knows for the page."""
    basic_keys.BasicKeys.withhold = lambda self, head: None  # type: ignore[method-assign]


@breaks("borrowed-pidfd")
def borrowed_pidfd() -> None:
    """Who waits for a process's end watches the sandbox's own pidfd, which may be closed meanwhile."""

    async def wait_exited(pidfd: int, deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await readiness.readable(pidfd)

    pidfds.wait_exited = pidfds.wait_status = wait_exited


@breaks("no-host-check", in_tests=True)
def no_host_check() -> None:
    """Whatever name a request uses for this host is right."""
    HostCheck.allows = lambda self, header: True  # type: ignore[method-assign]


@breaks("no-signatures")
def no_signatures() -> None:
    """AWS's API believes what an unsigned request says."""
    access.Access.check_head = lambda self, operation, headers: None  # type: ignore[method-assign]
    signatures.Signatures.check = lambda self, request, body: None  # type: ignore[method-assign]


@breaks("no-replays")
def no_replays() -> None:
    """A request that is sent again with the same idempotency key runs again."""

    async def once(
        self: replays.Replays, key: Any, body: Any, run: Callable[[], Awaitable[Any]], *, strict: bool, gone: Any = None
    ) -> Any:
        return await run()

    replays.Replays.once = once  # type: ignore[method-assign]
