"""The spares of Zygote nodes: children that are forked ahead of the requests that a node's recent rate lets expect.

Owns the tasks that make spares; a node owns its spares.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sockd.base.config import ZygoteConfig
from sockd.base.errors import SockdError
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.zygotes.children import SPARE_MEMORY_BYTES, Children
from sockd.starts.zygotes.spare_policy import wanted_spares
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd.starts.zygotes.zygote_nodes import ZygoteNodes

REFILL_S = 0.004
"""Time to make one spare ready (measured: 1-4 ms with the packages of this tree)."""
PRESSURE = 0.05
"""Below this free share of the memory budget only root Zygotes keep spares."""
_log = logging.getLogger(__name__)


class NodeSpares:
    """The spares of all nodes of one worker."""

    def __init__(self, config: ZygoteConfig, budget: MemoryBudget, nodes: ZygoteNodes, children: Children) -> None:
        self._config = config
        self._budget = budget
        self._nodes = nodes
        self._children = children
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def most(self) -> int:
        """How many spares a node may have; 0: none are kept."""
        return self._config.spares

    def take(self, node: ZygoteNode, reservation: Reservation) -> Sandbox | None:
        """A spare of a node, which owns the reservation; None: there is none, and the reservation still is the caller's."""
        spare = node.take_spare()
        if spare is not None:
            node.hit(time.monotonic())
            spare.process.adopt(reservation)
        return spare

    def refill(self, node: ZygoteNode) -> None:
        """Make as many spares as the node's recent rate asks for, in the background; never waits."""
        if node not in self._nodes.all or not node.zygote.uids.has_uid:
            return
        if self._budget.free < SPARE_MEMORY_BYTES:
            return  # no news: it is asked again
        missing = self._wanted(node) - len(node.spares) - node.spares_coming
        if missing > 0 and not node.spares_coming:
            node.spares_coming = missing
            task = asyncio.create_task(self._refill(node, missing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def adjust(self) -> None:
        """Drop the spares that no recent use asks for, and make those that are missing (called now and then)."""
        for node in self._nodes.all:
            node.drop_spares(keep=self._wanted(node))
            self.refill(node)

    def memory_bytes(self) -> int:
        """What all spares hold of the memory budget."""
        return sum(len(node.spares) for node in self._nodes.all) * SPARE_MEMORY_BYTES

    def make_room(self, need_bytes: int) -> None:
        """Give up spares that hold so many bytes together, the root's last; their memory comes free as their processes end."""
        for node in reversed(self._nodes.all):
            while node.spares and need_bytes > 0:
                node.drop_spares(keep=len(node.spares) - 1)
                need_bytes -= SPARE_MEMORY_BYTES

    def close(self) -> None:
        """Make no further spare."""
        for task in list(self._tasks):
            task.cancel()

    def _wanted(self, node: ZygoteNode) -> int:
        """The root keeps its spares while memory is merely short, as it serves every function: a start that waits gets them."""
        now_s = time.monotonic()
        budget = self._budget
        pressure = budget.contended or (bool(node.imports) and budget.free < budget.total * PRESSURE)
        return wanted_spares(
            node.lately.at(now_s),
            REFILL_S,
            self._config.spares,
            least=self._config.least_spares,
            idle_s=now_s - node.last_used_s,
            memory_pressure=pressure,
        )

    async def _refill(self, node: ZygoteNode, count: int) -> None:
        try:
            for _ in range(count):
                await self._make_spare(node)
        except (SockdError, OSError, TimeoutError) as error:
            _log.warning("no spare from %s: %s", node.id, error)
        finally:
            node.spares_coming = 0

    async def _make_spare(self, node: ZygoteNode) -> None:
        """One ready child more for a node. Raises: SandboxFailed, NoCapacity, OSError, TimeoutError."""
        spare = await self._children.fork_spare(node.zygote)
        if node in self._nodes.all:
            node.add_spare(spare)
        else:
            spare.destroy()
