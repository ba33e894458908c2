"""What a function with a private network may reach, over all its versions: the rules of its last deploy.

Owns the function's `Policy`, which is made before the first sandbox starts and goes with the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sockd.base.errors import NetworkUnavailable
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.policy import Policy

MOST_SHOWN = 3
"""Entries in a warning."""
_log = logging.getLogger(__name__)


class FunctionEgress:
    """`enforced` before a start, `changing` around a deploy, `close` after the last request."""

    def __init__(self, networks: Networks | None, function: str, entries: Sequence[str] | None) -> None:
        """Args: networks: the worker's; None: it has none; entries: as `egress` in sockd.toml; they have been checked."""
        self._function = function
        self._networks = networks
        self.entries = entries
        self._policy: Policy | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def enforced(self) -> Policy:
        """The rules, in force. Raises: NetworkUnavailable."""
        if self._policy is not None:
            return self._policy
        if self._networks is None:
            raise NetworkUnavailable("it was started without them")
        async with self._lock:
            if self._policy is None:
                rules, errors = self._networks.recorded(self.entries)
                policy = await self._networks.policy(rules)
                if self._is_closed:
                    policy.close()
                    raise NetworkUnavailable("the function is gone")
                self._policy = policy
                self._warn(errors)
        return self._policy

    @asynccontextmanager
    async def changing(self, entries: Sequence[str] | None) -> AsyncIterator[None]:
        """Other rules, also for sandboxes that run; the old ones again if the block fails.

        Raises: NetworkUnavailable; nothing has changed."""
        old = self.entries
        await self._change(entries)
        try:
            yield
        except BaseException:
            await self._change(old)
            raise

    async def _change(self, entries: Sequence[str] | None) -> None:
        async with self._lock:
            if self._policy is not None and self._networks is not None:
                try:
                    await self._policy.change(self._networks.recorded(entries)[0])
                except OSError as error:
                    raise NetworkUnavailable(f"the rules could not be changed: {error}") from error
            self.entries = entries

    def _warn(self, errors: Sequence[str]) -> None:
        if errors:
            more = f" and {len(errors) - MOST_SHOWN} more" if len(errors) > MOST_SHOWN else ""
            words = "%s has rules that would be refused now; entries that are named here open nothing: %s%s"
            _log.warning(words, self._function, "; ".join(errors[:MOST_SHOWN]), more)

    def close(self) -> None:
        """No further sandbox starts. Safe to call twice."""
        self._is_closed = True
        policy, self._policy = self._policy, None
        if policy is not None:
            policy.close()
