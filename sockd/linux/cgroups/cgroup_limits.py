"""The limits of one cgroup: memory, tasks and CPU time, and its weight among its siblings.

Owns what was written last, so that nothing is written that is there already: a cgroup's next sandbox is likely to have the
limits of its last.
"""

from __future__ import annotations

from sockd.linux.cgroups.controllers import Cpu, Memory, Pids, Weight


class CgroupLimits:
    """The limits of a new cgroup, which has none. They stay when it is scrubbed; its weight does not."""

    def __init__(self, memory: Memory, cpu: Cpu, pids: Pids) -> None:
        self._memory = memory
        self._cpu = cpu
        self._pids = pids
        self._memory_bytes: int | None = None
        self._tasks: int | None = None
        self._cpus: float | None = None
        self._has_usual_weight = True

    def set(self, memory_bytes: int | None, tasks: int | None, cpus: float | None) -> None:
        """`set_memory`, `set_pids` and `set_cpus`. Raises: as these."""
        self.set_memory(memory_bytes)
        self.set_pids(tasks)
        self.set_cpus(cpus)

    def set_memory(self, limit_bytes: int | None) -> None:
        """Limit memory, without swap beyond it; None: no limit. Raises OSError: the cgroup holds more than that already."""
        if limit_bytes != self._memory_bytes:
            self._memory_bytes = 0  # unknown, if that fails half-way
            self._memory.set_limit(limit_bytes)
            self._memory_bytes = limit_bytes

    def set_pids(self, tasks: int | None) -> None:
        """Limit the number of processes and threads; None: no limit."""
        if tasks != self._tasks:
            self._pids.set_limit(tasks)
            self._tasks = tasks

    def set_cpus(self, cpus: float | None) -> None:
        """Limit CPU time to so many CPUs' worth in each 100 ms; None: no limit."""
        if cpus != self._cpus:
            self._cpu.set_limit(cpus)
            self._cpus = cpus

    def lower_weight(self, weight: Weight = "least") -> None:
        """Give the cgroup less CPU time than its siblings get, until it is scrubbed; with "least" hardly any that they want.

        Raises OSError."""
        self._has_usual_weight = False
        self._cpu.set_weight(weight)

    def restore_weight(self) -> None:
        """Give the cgroup as much CPU time as its siblings get. Raises OSError."""
        if not self._has_usual_weight:
            self._cpu.set_weight("usual")
            self._has_usual_weight = True
