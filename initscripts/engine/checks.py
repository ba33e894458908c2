"""A run's checks: whether an object is still what the app was sent of it, asked for after the app may have written something.

Owns the tasks that ask, over connections that the pool keeps. The app waits for the answer, and does without one.
"""

from __future__ import annotations

import asyncio

from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.connections import Connector
from sockd_initscripts.engine.messages import Outbox
from sockd_initscripts.rpc.base import RpcFailed
from sockd_storage_lib.sockd_initscript.wire import WireError

MOST = 64
"""Checks of one run at once."""


class Checks:
    """The checks of one run; the loop's."""

    def __init__(self, link: AppLink, outbox: Outbox) -> None:
        self._link = link
        self._outbox = outbox
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, number: int, dialer: Connector | None) -> None:
        """Find out and tell the app. Args: number: of a message; dialer: the function's. Raises: WireError, of an app that
        does not wait."""
        if len(self._tasks) >= MOST:
            raise WireError(f"more than {MOST} checks at once")
        task = asyncio.get_running_loop().create_task(self._check(number, dialer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End all that are under way."""
        for task in self._tasks:
            task.cancel()

    async def _check(self, number: int, dialer: Connector | None) -> None:
        version = self._outbox.versions.get(number)
        same = dialer is not None and version is not None and await _is_unchanged(dialer, *version)
        self._link.send({"op": "checked", "id": number, "same": same})


async def _is_unchanged(dialer: Connector, descriptor: list[str], etag: str) -> bool:
    try:
        address = descriptor[1] if "://" in descriptor[1] else f"{descriptor[0].partition('.')[0]}:"
        connection = dialer.connect(address)
        try:
            return await connection.is_unchanged(descriptor, etag)
        finally:
            connection.close()
    except RpcFailed:
        return False
