"""Provisioned concurrency: the pools of initialized sandboxes of versions and aliases.

    POLICY: an alias's provision is divided among its versions in proportion to the requests, and moves with the alias. In a group
    of workers each has its share of a provision (`serving/group_shares`).

Owns the pools and their memory, which is reserved before a provision is accepted. The registry stores the provisions: a new
daemon creates their sandboxes in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Literal

from sockd.base.errors import BadRequest, SockdError
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import LATEST, Alias, number_of
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function import Function
from sockd.functions.serving.group_shares import GroupShares
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.functions.serving.provisioned import PAUSE_S, Pool
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation

ROOM_S = 5.0
"""Maximum wait for the eviction of idle sandboxes."""
UNPUBLISHED = "Provisioned Concurrency Configs cannot be applied to unpublished function versions."

_log = logging.getLogger(__name__)


class NotProvisioned(SockdError):
    """Nothing is provisioned for this version or alias."""

    status = 404
    error_type = "ProvisionedConcurrencyConfigNotFoundException"


class AlreadyProvisioned(SockdError):
    """A version and an alias of it cannot both have a provision."""

    status = 409
    error_type = "ResourceConflictException"


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one provision."""

    provision: Provision
    available: int
    """Initialized sandboxes on this worker, with those that are serving a request."""
    state: Literal["READY", "IN_PROGRESS", "FAILED"]
    reason: str
    """Why it failed here; it is tried again."""


class Share:
    """The pools of one provision: one for each version that it is for."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._held = Reservation(budget, 0)
        self._pools: dict[int, tuple[Function, Pool]] = {}
        self.ended = asyncio.Event()
        self.changing = asyncio.Lock()
        self.failure = ""

    @property
    def available(self) -> int:
        return sum(pool.available for _, pool in self._pools.values())

    @property
    def reason(self) -> str:
        return self.failure or next((pool.failure for _, pool in self._pools.values() if pool.failure), "")

    async def change(self, wanted: dict[Function, int]) -> None:
        """Keep so many of these versions, and none of others. Raises: NoCapacity; everything stays as it was then."""
        size = sum(count * memory_bytes(function) for function, count in wanted.items())
        if size > self._held.size:
            await self._held.grow(size, deadline_s=ROOM_S)
        if self.ended.is_set():  # in the meantime
            self._held.close()
            return
        for number in [number for number, (function, _) in self._pools.items() if function not in wanted]:
            self._drop(number)
        for function, count in wanted.items():
            self._pool(function).resize(count)
        self._held.resize_nowait(size)

    def close(self) -> None:
        self.ended.set()
        for number in list(self._pools):
            self._drop(number)
        self._held.close()

    def _pool(self, function: Function) -> Pool:
        record, number = function.version.record, int(function.version.number)
        if number not in self._pools:
            what = f"{record.name}:{number}"
            pool = Pool(function.initialize, memory_bytes(function), what, function.offer_idle)
            self._pools[number] = (function, pool)
            function.pools.append(pool)
        return self._pools[number][1]

    def _drop(self, number: int) -> None:
        function, pool = self._pools.pop(number)
        function.pools.remove(pool)
        pool.close()


class Provisioning:
    """`load` first; `close` last, before the functions."""

    def __init__(self, registry: Registry, live: LiveFunctions, budget: MemoryBudget, group: GroupShares) -> None:
        self._registry = registry
        self._live = live
        self._budget = budget
        self._shares: dict[tuple[str, str], Share] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = group
        group.followers.append(self.load)
        registry.followers.append(self.reconcile)

    def load(self) -> None:
        """Begin with this worker's shares of what the registry wishes for; in a group, again whenever it has other workers."""
        for provision in self._registry.provisions():
            self._restore(provision)

    async def put(self, name: str, qualifier: str, wanted: int) -> Status:
        """Keep so many initialized for a version or an alias.

        Raises: NoSuchVersion, BadRequest, AlreadyProvisioned; NoCapacity: their memory is not to be had, and what was
            provisioned before stays."""
        self._check(name, qualifier, wanted)
        share = self._share(name, qualifier)
        try:
            async with share.changing:
                await self._change(share, name, qualifier, wanted)
                self._shares_of(name, qualifier, wanted)  # it may have been deleted in the meantime
                provision = Provision(name, qualifier, wanted, time.time())
                await self._registry.change(name, lambda function: function.with_provision(provision))
        finally:
            if qualifier not in self._registry.of(name).provisions:  # refused, or deleted in the meantime
                self._forget(name, qualifier)
        return self.status(name, qualifier)

    def status(self, name: str, qualifier: str) -> Status:
        """Raises: NoSuchVersion, NotProvisioned."""
        self._shares_of(name, qualifier, 1)
        provision = self._registry.of(name).provisions.get(qualifier)
        if provision is None:
            raise NotProvisioned("No Provisioned Concurrency Config found for this function")
        return self._status(provision)

    def list(self, name: str) -> list[Status]:
        """Return the provisions of one function."""
        return [self._status(provision) for provision in self._registry.of(name).provisions.values()]

    def wanted(self, name: str) -> int:
        """How many are to be kept for a function in all."""
        return sum(provision.wanted for provision in self._registry.of(name).provisions.values())

    def available(self) -> int:
        """Initialized sandboxes of all functions, with those that are serving a request."""
        return sum(share.available for share in self._shares.values())

    async def delete(self, name: str, qualifier: str) -> None:
        """Keep none any more. Raises: NoSuchVersion."""
        self._shares_of(name, qualifier, 1)
        await self._registry.change(name, lambda function: function.without_provision(qualifier))

    def check_alias(self, alias: Alias) -> None:
        """Whether an alias may lead where it is to lead now. Raises: BadRequest."""
        if alias.version == LATEST and alias.alias in self._registry.of(alias.name).provisions:
            raise BadRequest(UNPUBLISHED)

    def reconcile(self, old: FunctionAggregate, new: FunctionAggregate) -> None:
        """End what is not provisioned any more, and begin in the background with what is now; where an alias leads elsewhere,
        its provision moves."""
        for qualifier in old.provisions.keys() - new.provisions.keys():
            self._forget(new.name, qualifier)
        for qualifier, provision in new.provisions.items():
            was = old.provisions.get(qualifier), old.aliases.get(qualifier)
            if was != (provision, new.aliases.get(qualifier)):
                self._restore(provision)

    def _forget(self, name: str, qualifier: str) -> None:
        share = self._shares.pop((name, qualifier), None)
        if share is not None:
            share.close()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for share in self._shares.values():
            share.close()
        self._shares.clear()

    # -- steps

    def _check(self, name: str, qualifier: str, wanted: int) -> None:
        targets = self._shares_of(name, qualifier, wanted)
        function = self._registry.of(name)
        if number_of(qualifier) is None and any(number in function.provisions for number in targets):
            raise AlreadyProvisioned(
                "Alias can't be used for Provisioned Concurrency configuration on an already Provisioned version"
            )
        aliases = [alias for alias in function.aliases.values() if qualifier in (alias.version, alias.other)]
        if any(alias.alias in function.provisions for alias in aliases):
            raise AlreadyProvisioned("Version is pointed by a Provisioned Concurrency alias")
        others = sum(each.wanted for each in function.provisions.values() if each.qualifier != qualifier)
        concurrency = self._live.settings(name).concurrency
        if others + wanted > concurrency:
            raise BadRequest(
                "Requested Provisioned Concurrency should not be greater than the reservedConcurrentExecution for "
                f"function, which is {concurrency}"
            )

    def _shares_of(self, name: str, qualifier: str, wanted: int) -> dict[str, int]:
        """How many of which version. Raises: NoSuchFunction, BadRequest."""
        self._registry.get(name)
        if qualifier == LATEST:
            raise BadRequest(UNPUBLISHED)
        number = number_of(qualifier)
        if number is not None:
            self._registry.of(name).published(number)
            return {qualifier: wanted}
        shares = self._registry.of(name).alias(qualifier).shares(wanted)
        if LATEST in shares:
            raise BadRequest(UNPUBLISHED)
        return shares

    def _share(self, name: str, qualifier: str) -> Share:
        key = (name, qualifier)
        if key not in self._shares:
            self._shares[key] = Share(self._budget)
        return self._shares[key]

    async def _change(self, share: Share, name: str, qualifier: str, wanted: int) -> None:
        mine = self._group.of(name, wanted)
        shares = self._shares_of(name, qualifier, mine) if mine else {}
        published = self._live.published
        functions = {await published.get(name, int(number)): count for number, count in shares.items()}
        await share.change(functions)
        share.failure = ""

    def _restore(self, provision: Provision) -> None:
        task = asyncio.get_running_loop().create_task(self._keep_trying(provision))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_trying(self, provision: Provision) -> None:
        """Do what the registry says of a provision, until it is done or the registry says something else."""
        name, qualifier = provision.name, provision.qualifier
        share = self._share(name, qualifier)
        pause_s, longest_s = PAUSE_S
        while self._registry.of(name).provisions.get(qualifier) == provision:
            try:
                async with share.changing:
                    await self._change(share, name, qualifier, provision.wanted)
                return
            except (SockdError, OSError) as error:
                share.failure = error.message if isinstance(error, SockdError) else str(error)
                _log.warning("%s:%s cannot be provisioned: %s", name, qualifier, share.failure)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await share.ended.wait()
                pause_s = min(2 * pause_s, longest_s)

    def _status(self, provision: Provision) -> Status:
        share = self._shares.get((provision.name, provision.qualifier))
        if share is None:
            return Status(provision, 0, "IN_PROGRESS", "")
        mine = self._group.of(provision.name, provision.wanted)
        available, reason = min(share.available, mine), share.reason
        if available == mine:
            return Status(provision, available, "READY", "")
        return Status(provision, available, "FAILED" if reason else "IN_PROGRESS", reason)


def memory_bytes(function: Function) -> int:
    """Return the memory of one sandbox, in bytes."""
    return function.version.program.limits.memory_bytes
