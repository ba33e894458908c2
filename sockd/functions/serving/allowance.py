"""The limits of a function over all its versions: concurrent requests and inits, reserved memory, sockets, what its network
reaches.

Owns the admission queue, the gate of starts, the reserved memory, the socket count and the rules of its network. They are those
of the last deploy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sockd.base.errors import NoCapacity
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.admission import Admission
from sockd.functions.serving.function_egress import FunctionEgress
from sockd.functions.serving.start_gate import StartGate, StartLimits
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.linux.bpf.socket_counts import NO_LIMIT, UNCOUNTED, Account
from sockd.linux.processes.task_shares import TaskShare


class Allowance:
    """What one function may use over all its versions. Call `change` at each deploy, and `close` when the function is
    forgotten."""

    def __init__(
        self,
        function: str,
        config: FunctionConfig,
        budget: MemoryBudget,
        open_account: Callable[[], Account] = UNCOUNTED.account,
        networks: Networks | None = None,
        start_limits: StartLimits | None = None,
        tasks: int = NO_LIMIT,
        share: Callable[[int], int] = int,
        resized: Callable[[], None] = lambda: None,
        short: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Args: function: its name; open_account: makes the account of its sockets; networks: private ones; start_limits:
            None: those of this host, without a configuration; tasks: processes and threads of all its sandboxes; share: gives
            this worker's share of a concurrency; resized: called when the concurrency may be another; short: as Admission has it.

        Raises: NoCapacity."""
        self._share = share
        self._resized = resized
        self.admission = admission = Admission(share(config.concurrency), config.queue_depth, short)
        self._start_limits = start_limits or StartLimits()
        self.starts = StartGate(
            asyncio.get_running_loop(),
            self._start_limits,
            config.init_timeout_s,
            config.timeout_s,
            running=lambda: admission.running,
            has_room=self._has_room,
        )
        self._budget = budget
        self._config = config
        self._reserved: Reservation | None = None
        self._own_budget = MemoryBudget(0)
        self._reserve(config.reserved_memory_mb)
        self._sockets = open_account()
        self.tasks = TaskShare(tasks)
        """The processes and threads of all its sandboxes."""
        self.egress = FunctionEgress(networks, function, config.egress)
        """The rules of the function's network. `Functions` changes and closes them, as both may wait."""

    def change(self, config: FunctionConfig) -> None:
        """Give it other numbers. Raises: NoCapacity, when its memory is not to be had; the old ones stay."""
        self._release()
        try:
            self._reserve(config.reserved_memory_mb)
        except NoCapacity:
            self._reserve(self._config.reserved_memory_mb)
            raise
        self._config = config
        self.divide()
        self.starts.change(config.init_timeout_s, config.timeout_s)

    def divide(self) -> None:
        """Admit as many requests as this worker's share of the concurrency is now."""
        self.admission.resize(self._share(self._config.concurrency), self._config.queue_depth)
        self._resized()

    async def reserve(self, memory_bytes: int, *, deadline_s: float) -> Reservation:
        """Memory for one sandbox: the function's own, or the worker's. Raises: NoCapacity."""
        return self.reserve_nowait(memory_bytes) or await self._budget.reserve(memory_bytes, deadline_s=deadline_s)

    def reserve_nowait(self, memory_bytes: int) -> Reservation | None:
        """As `reserve`, of memory that is free; None: there is not so much."""
        return self._own_budget.reserve_nowait(memory_bytes) or self._budget.reserve_nowait(memory_bytes)

    def _has_room(self) -> bool:
        """Whether a start would not have to wait for memory."""
        size, budget = self._config.memory_mb << 20, self._budget
        if self._own_budget.free >= size:
            return True
        return not budget.contended and (budget.free >= size or self._start_limits.can_evict(size - budget.free))

    @property
    def socket_account(self) -> int:
        """In which the sockets of all its sandboxes are counted."""
        return self._sockets.index

    def close(self) -> None:
        """Waiters are served, later requests are not."""
        self.admission.close()
        self._release()
        self._sockets.close()

    def _reserve(self, megabytes: int) -> None:
        """Take the memory that only this function may use out of the worker's. Raises: NoCapacity."""
        if not megabytes:
            return
        self._reserved = self._budget.reserve_nowait(megabytes << 20)
        if self._reserved is None:
            raise NoCapacity(f"{megabytes} MB cannot be reserved: the worker has less memory free")
        self._own_budget = MemoryBudget(megabytes << 20)

    def _release(self) -> None:
        """Sandboxes that hold a part of it keep it until they end; new ones take from the worker's."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
            self._own_budget = MemoryBudget(0)
