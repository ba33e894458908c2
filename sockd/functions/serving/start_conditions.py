"""What must hold before a sandbox of a function starts: the rules of its network are in force, and its memory is reserved."""

from __future__ import annotations

from dataclasses import dataclass

from sockd.functions.serving.allowance import Allowance
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.memory_budget import Reservation


@dataclass(frozen=True, slots=True)
class StartConditions:
    """The conditions of starts of one version (`sockd.starts.sources.Conditions`)."""

    allowance: Allowance
    deadline_s: float
    """How long a start waits for memory."""
    may_wait_only: bool = False
    """Something else goes first: an initscript."""

    def reserve_nowait(self, program: Program) -> Reservation | None:
        """The memory, if there is nothing to wait for."""
        if self.may_wait_only or (program.limits.network == "private" and program.policy is None):
            return None
        return self.allowance.reserve_nowait(program.limits.memory_bytes)

    async def reserve(self, program: Program) -> Reservation:
        """Wait until they hold. Raises: NetworkUnavailable, NoCapacity."""
        await self.enforce_rules(program)
        return await self.allowance.reserve(program.limits.memory_bytes, deadline_s=self.deadline_s)

    async def enforce_rules(self, program: Program) -> None:
        """Raises: NetworkUnavailable."""
        if program.limits.network == "private" and program.policy is None:
            program.policy = await self.allowance.egress.enforced()


class ReservedBefore:
    """As `StartConditions`, with memory that is reserved already: a provisioned sandbox's."""

    def __init__(self, reservation: Reservation, conditions: StartConditions) -> None:
        self._reservation: Reservation | None = reservation
        self._conditions = conditions

    def reserve_nowait(self, program: Program) -> Reservation | None:
        """None, as `reserve` has to be asked for the rules of the network."""

    async def reserve(self, program: Program) -> Reservation:
        """The one that was made, which is the caller's now; if its Zygote ended, one like it. Raises: as `StartConditions`."""
        if self._reservation is None:
            return await self._conditions.reserve(program)
        try:
            await self._conditions.enforce_rules(program)
        except BaseException:
            self._reservation.close()
            raise
        reservation, self._reservation = self._reservation, None
        return reservation
