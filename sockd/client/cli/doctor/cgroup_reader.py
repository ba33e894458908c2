"""What a cgroup of version 1 holds, read by cgroupspy, which has nothing in common with our code.

For `sockd doctor` and the tests. cgroupspy knows version 1 alone; of the controllers that sockd limits it reads memory and cpu.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one cgroup, and who is in it."""

    memory_bytes: int
    cpu_quota_us: int
    cpu_period_us: int
    pids: tuple[int, ...]

    @property
    def cpus(self) -> float:
        """Processors' worth of time."""
        return self.cpu_quota_us / self.cpu_period_us


def read(memory_directory: str, cpu_directory: str) -> Limits:
    """The limits of a cgroup, by its directory in each hierarchy.

    Raises: ImportError: no cgroupspy; OSError: there is no such cgroup."""
    memory = _controller("memory", memory_directory)
    cpu = _controller("cpu", cpu_directory)
    pids = tuple(sorted(memory.procs))  # type: ignore[attr-defined]
    return Limits(memory.limit_in_bytes, cpu.cfs_quota_us, cpu.cfs_period_us, pids)  # type: ignore[attr-defined]


def _controller(name: str, directory: str) -> object:
    """What cgroupspy reads files of a directory with. A node of its tree below a controller's root has its files' types; the
    whole tree is not built, as other cgroups come and go meanwhile."""
    from cgroupspy.controllers import CpuController, MemoryController
    from cgroupspy.nodes import Node

    if not os.path.isdir(directory):
        raise FileNotFoundError(f"there is no cgroup {directory}")
    kinds = {"memory": MemoryController, "cpu": CpuController}
    return kinds[name](Node(directory))
