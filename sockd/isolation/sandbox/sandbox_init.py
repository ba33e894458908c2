"""The init of one sandbox: how long it may take, what it took, and what it imported. Owns nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sockd.base.errors import TimedOut
from sockd.isolation.sandbox.init_time import LEAST_S, left_s, waited_s
from sockd.isolation.sandbox.process import SandboxProcess


@dataclass(eq=False, slots=True)
class SandboxInit:
    """What is known of the time between a sandbox's INIT and its READY."""

    timeout_s: float = 0.0
    """How long it may take: as its program says, unless this is set before the sandbox becomes that program."""
    started_ns: int = 0
    """When the sandbox was ready to be a function (CLOCK_MONOTONIC), as the sandbox says itself."""
    took_ns: int = 0
    has_succeeded: bool = False
    """Whether the sandbox has been READY."""
    imports: list[tuple[str, str, float]] | None = None
    """What the function imported after the fork: (package directory, module, own seconds), in the order the imports
    began; known with the first answer."""
    on_end: Callable[[], None] | None = None
    """Called once, when the init has ended, or the sandbox with it."""
    asked_s: float = 0.0
    """When the init was first waited for, by the loop's clock."""

    def end(self) -> None:
        """Call `on_end`, the first time."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def judge(self, process: SandboxProcess, now_s: float, what: str = "Init") -> float | TimedOut:
        """Return how many more seconds the init may take, because it waited for a processor that others used, or its end.

        Args: now_s: by the loop's clock; what: has this deadline, in words."""
        limit_s, elapsed_s = self.timeout_s, now_s - self.asked_s
        delayed_s = waited_s(elapsed_s, process.cgroup.cpu_times(), process.limits.cpus)
        more_s = left_s(limit_s, limit_s * process.parts.init_ceiling, elapsed_s, delayed_s)
        if more_s:
            return more_s
        words = f"{what} timed out after {limit_s:.2f} seconds"
        if delayed_s >= LEAST_S:
            words += (
                f", not counting {min(delayed_s, elapsed_s - limit_s):.2f} seconds in which it waited for a processor"
            )
        return TimedOut(words, "init_timeout_s")
