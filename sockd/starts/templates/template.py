"""One template: a Zygote that has run a version's init, the memory that is reserved for it, and its use.

Owns the Zygote and the reservation. Sandboxes that were forked from it outlive it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sockd.base.errors import SockdError, TimedOut
from sockd.isolation.farm.templated import TemplateReport
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import Program
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.starts.zygotes.top_levels.soundness import ImportView

RESTORE_S = 10.0
"""How long a start from a template may take until it is ready, its hooks included, as on AWS."""
MOST_WORDS = 200
"""Characters of a reason in a header."""


class SnapshotRefused(Exception):
    """A version cannot have a template: the reason, in words, and what to do. No request ever gets it."""


class Conditions(Protocol):
    """What must hold before a version runs: its memory is reserved, its network has rules."""

    async def reserve(self, program: Program) -> Reservation:
        """Wait until they hold. Raises: SockdError."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshotted:
    """A version that is to have a template."""

    name: str
    """The function's."""
    number: str
    """$LATEST, or the published version's."""
    view: ImportView
    program: Program
    conditions: Conditions
    log: Callable[[bytes, SockdError | None], None]
    """Takes what the init printed, and its failure."""

    @property
    def words(self) -> str:
        """The version, for the log."""
        return f"{self.name} {self.number}"


@dataclass(eq=False, slots=True)
class Template:
    """A template that serves. `close` ends it."""

    of: Snapshotted
    zygote: Zygote
    ancestors: tuple[Zygote, ...]
    """The Zygotes that it was forked from, the nearest first."""
    reservation: Reservation
    report: TemplateReport
    starts: int = 0
    rate: DecayingRate = field(default_factory=lambda: DecayingRate(RATE_TAU_S, now_s=time.monotonic()))

    @property
    def may_fork(self) -> bool:
        """Whether it lives, and has a uid for another sandbox."""
        return self.zygote.alive and self.zygote.uids.has_uid

    @property
    def memory_bytes(self) -> int:
        """What of the memory budget it holds."""
        return self.reservation.size

    def hit(self) -> None:
        """Count a start from it."""
        self.starts += 1
        self.rate.hit(time.monotonic())

    def worth(self, now_s: float) -> float:
        """POLICY: what it saves: seconds of init for each second and byte that it is kept. Args: now_s: CLOCK_MONOTONIC."""
        rate = max(self.rate.at(now_s), 1 / (RATE_TAU_S * RATE_TAU_S))
        return self.report.seconds * rate / max(self.memory_bytes, 1)

    def close(self) -> None:
        """End it; its sandboxes live on. Safe to call twice."""
        self.zygote.close()
        self.reservation.close()


def failed_words(error: SockdError) -> str:
    """Say how a start from a template has failed."""
    if isinstance(error, TimedOut):
        return (
            f"SnapStartTimeoutException: loading and the hooks after the restore have not ended within {RESTORE_S:g} s"
        )
    return f"{error.error_type}: {error.message}"


def lost_words(reason: str) -> str:
    """Say why a start was not one from its snapshot: printable ASCII that may stand quoted in a header."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "?" for each in reason)
    return f"not started from its snapshot: {plain[:MOST_WORDS]}"
