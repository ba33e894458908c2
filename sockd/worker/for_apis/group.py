"""The worker as its group and the proxy in front of it see it: what it reports, and whether it is to get requests.

Owns nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import msgspec

from sockd import __version__
from sockd.base.config import Config
from sockd.base.errors import BadRequest, DatabaseUnavailable
from sockd.events.clock import LoopClock, pause
from sockd.events.membership import Membership
from sockd.http.management.peer_key import PeerKey
from sockd.http.management.peers import PeerAnswer, Peers
from sockd.worker.for_apis.calls import Calls
from sockd.worker.worker import Worker

DIGEST_CHARS = 12
NO_GROUP = "this worker is in no group; sockd up --join DSN --group NAME joins one"


class About:
    """What a worker reports to its group."""

    def __init__(self, worker: Worker, calls: Calls, url: Callable[[], str]) -> None:
        """Args: url: where the public port is."""
        self._worker = worker
        self._calls = calls
        self._url = url

    def __call__(self) -> dict[str, Any]:
        allowances, budget = self._worker.functions.live.allowances, self._worker.budget
        return {
            "address": self._worker.config.group.address or self._url().partition("://")[2],
            "version": __version__,
            "configuration": self._configuration,
            "draining": self._calls.leaving,
            "running": allowances.running(),
            "queued": allowances.waiting(),
            "memory": round(budget.used / budget.total, 3),
            "functions": len(self._worker.functions.live.names()),
            "revision": self._worker.group.following.revision if self._worker.group is not None else 0,
            "divisor": self._worker.shares.divisor,
            "claims": self._worker.shares.report(allowances.under_way(), allowances.admitted),
            "cache_node": self._worker.cache.address if self._worker.cache is not None else "",
        }

    @cached_property
    def _configuration(self) -> str:
        return digest(self._worker.config)


def digest(config: Config) -> str:
    """Return a few digits that are the same for workers whose settings differ in nothing but names, addresses and directories."""
    same = msgspec.structs.replace(
        config,
        state_dir="",
        http=msgspec.structs.replace(config.http, listen=""),
        management=msgspec.structs.replace(config.management, listen=""),
        postgres=msgspec.structs.replace(config.postgres, worker=""),
        images=msgspec.structs.replace(config.images, worker=None),
        group=msgspec.structs.replace(config.group, address="", cache_node_port=0),
    )
    return hashlib.sha256(msgspec.json.encode(same, order="sorted")).hexdigest()[:DIGEST_CHARS]


class Group:
    """As `sockd.http.worker.Group`."""

    def __init__(self, config: Config, membership: Membership | None, peer_key: PeerKey | None, calls: Calls) -> None:
        self.name = config.group.name
        self._here = config.worker_name
        self._membership = membership
        self._calls = calls
        self._peers = Peers(peer_key, self._addresses) if peer_key is not None else None
        self._known: dict[str, str] = {}
        """Where the live workers are reached, as the database said last."""

    async def workers(self) -> list[dict[str, Any]]:
        if self._membership is None:
            raise BadRequest(NO_GROUP)
        rows = []
        for member in await self._membership.members():
            about: dict[str, Any] = msgspec.json.decode(member.about)
            state = "gone" if member.taken_by else "draining" if about.get("draining") else "serving"
            seen = {"events": member.events, "seen_s": round(member.seen_s, 3), "taken_by": member.taken_by}
            rows.append({"name": member.name, "here": member.name == self._here, "state": state, **about, **seen})
        return rows

    @asynccontextmanager
    async def ask(self, worker: str, target: bytes, authorization: bytes) -> AsyncGenerator[PeerAnswer]:
        if self._peers is None:
            raise BadRequest(NO_GROUP)
        async with self._peers.ask(worker, target, authorization) as answer:
            yield answer

    async def _addresses(self) -> dict[str, str]:
        """Return where the live workers are reached; while the database is away, where they were."""
        try:
            self._known = {row["name"]: row["address"] for row in await self.workers() if not row["taken_by"]}
        except DatabaseUnavailable:
            if not self._known:
                raise
        return self._known

    async def drain(self, *, draining: bool) -> None:
        self._calls.leaving = draining
        if self._membership is not None:
            await self._membership.report()

    async def give_notice(self, notice_s: float) -> None:
        """Have a proxy send no more requests, and serve what comes for so many seconds, unless it knows already."""
        if not self._calls.leaving:
            self._calls.leaving = True
            await pause(LoopClock(), notice_s)
