"""The time limit of an init: what a sandbox waits for a processor that others use does not count.

    POLICY: a busy worker must not end inits that its own load has delayed; what the function itself spends (CPU time, sleeping,
    waiting for the network, waiting for its own CPU quota) counts. A ceiling of wall-clock time ends all.

Pure.
"""

from __future__ import annotations

from sockd.linux.processes.cpu_times import CpuTimes

LEAST_S = 0.01
"""A shorter extension is not worth another look."""


def waited_s(elapsed_s: float, times: CpuTimes, cpus: float) -> float:
    """How much of the elapsed time a sandbox waited for a processor, and not for its own quota.

    With its quota alone it would have needed `used / cpus` seconds at least, so it waited for others no longer than the rest.

    Args: times: of its threads; cpus: its quota."""
    of_others_s = elapsed_s - times.used_ns / 1e9 / cpus
    return max(0.0, min(times.delayed_ns / 1e9, of_others_s))


def left_s(limit_s: float, most_s: float, elapsed_s: float, waited_s: float) -> float:
    """How long an init may go on; 0: its time is over.

    Args: limit_s: its time limit, without waiting; most_s: the ceiling; elapsed_s, waited_s: since its start."""
    left = min(limit_s + waited_s, most_s) - elapsed_s
    return left if left >= LEAST_S else 0.0
