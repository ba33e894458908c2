"""The memory that a function's settings reserve, before a deploy is recorded that reserves more.

Owns nothing: the function's allowance has the reservation.
"""

from __future__ import annotations

from sockd.base.errors import NoCapacity
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.deploy_check import GONE_S
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.isolation.sandbox.memory_budget import MemoryBudget


class ReservedMemory:
    """The reservations of all functions of a worker."""

    def __init__(self, live: LiveFunctions, budget: MemoryBudget) -> None:
        self._live = live
        self._budget = budget

    def check(self, name: str, config: FunctionConfig) -> None:
        """Refuse settings that a switch could not reserve memory for. Raises: NoCapacity."""
        if self._lacking(name, config) > self._budget.free:
            raise NoCapacity(f"reserved_memory_mb = {config.reserved_memory_mb}: the worker has less memory free")

    async def wait(self, name: str, config: FunctionConfig) -> None:
        """Wait until a switch can reserve the function's memory: the sandbox of the check gives back its own when its last
        process has ended. Raises: NoCapacity."""
        if (lacking := self._lacking(name, config)) > 0:
            (await self._budget.reserve(lacking, deadline_s=GONE_S)).close()

    def _lacking(self, name: str, config: FunctionConfig) -> int:
        """Bytes that the settings reserve beyond those of the live version; negative if they reserve less."""
        live = self._live.by_name
        held = live[name].version.config.reserved_memory_mb if name in live else 0
        return (config.reserved_memory_mb - held) << 20
