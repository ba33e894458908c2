"""Controllers: memory, cpu and pids of one cgroup, the same for v1 and v2.

Owns nothing but the fds kept in the `CgroupFiles` that it is given. Knows no policy: which limit is right, what to do at
one. The file names are the kernel's (admin-guide/cgroup-v1/memory, scheduler/sched-bwc, admin-guide/cgroup-v2).
"""

from __future__ import annotations

import os
from typing import Literal, Protocol

from sockd.linux.cgroups.files import CgroupFiles

CPU_PERIOD_US = 100_000
Weight = Literal["usual", "half", "least"]
"""A cgroup's part of the CPU time that its siblings compete for."""
_WEIGHTS: dict[int, dict[Weight, str]] = {
    1: {"usual": "1024", "half": "512", "least": "2"},
    2: {"usual": "100", "half": "50", "least": "1"},
}
_LEAST_QUOTA_US = 1_000  # The kernel refuses less.
LEFTOVER_BYTES = 1 << 20
"""A cgroup that still has this much charged without a process in it is not fit for another sandbox."""


class Memory(Protocol):
    """The memory controller of one cgroup."""

    peak_resets: bool
    """Whether `reset_peak` works: v2 can since 6.12."""

    def prepare(self) -> None:
        """Open what a sandbox's start needs."""

    def settle(self) -> None:
        """Close what only a sandbox's start needs."""

    def set_limit(self, limit_bytes: int | None) -> None:
        """Limit memory, without swap beyond it; None is no limit. Raises OSError: the cgroup holds more than that."""

    def usage_bytes(self) -> int:
        """What is charged now."""

    def peak_bytes(self) -> int:
        """The most that was charged since the last reset; where the kernel does not keep it (v2 before 5.19), `usage_bytes`."""

    def reset_peak(self) -> None:
        """Forget the peak, where `peak_resets`."""

    def oom_kills(self) -> int:
        """How often the kernel killed a process of this cgroup for its limit, since the cgroup was made."""

    def reclaim(self) -> None:
        """Give back what can be given back: slow (2 ms)."""

    def cache_bytes(self) -> int:
        """How much of the charge is page cache of files on disk."""


class MemoryV1:
    """memory.limit_in_bytes and its neighbours."""

    peak_resets = True

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files
        # Present with swap accounting (`swapaccount=`); without it swap is off for us by swappiness alone.
        self._memsw = files.exists("memory.memsw.limit_in_bytes")
        self._limited = False

    def prepare(self) -> None:
        self._files.keep("memory.limit_in_bytes", os.O_WRONLY)
        if self._memsw:
            self._files.keep("memory.memsw.limit_in_bytes", os.O_WRONLY)

    def settle(self) -> None:
        self._files.release("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")

    def set_limit(self, limit_bytes: int | None) -> None:
        # memory+swap may never be below memory: lift it first, lower it last.
        if self._memsw and self._limited:
            self._files.write("memory.memsw.limit_in_bytes", "-1")
        self._files.write("memory.limit_in_bytes", "-1" if limit_bytes is None else str(limit_bytes))
        self._limited = limit_bytes is not None
        if self._memsw and limit_bytes is not None:
            self._files.write("memory.memsw.limit_in_bytes", str(limit_bytes))

    def usage_bytes(self) -> int:
        return int(self._files.read("memory.usage_in_bytes"))

    def peak_bytes(self) -> int:
        return int(self._files.read("memory.max_usage_in_bytes"))

    def reset_peak(self) -> None:
        self._files.write("memory.max_usage_in_bytes", "0")

    def oom_kills(self) -> int:
        return self._files.read_field("memory.oom_control", "oom_kill")

    def reclaim(self) -> None:
        self._files.write("memory.force_empty", "0")

    def cache_bytes(self) -> int:
        # `cache` counts tmpfs too, whose pages are the cgroup's alone.
        stat = self._files.read_field
        return stat("memory.stat", "cache") - stat("memory.stat", "shmem")


class MemoryV2:
    """memory.max and its neighbours. memory.oom.group stays 0: at the limit the kernel kills one process, as on v1, so a handler
    outlives a subprocess that takes too much."""

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files
        self._has_peak = files.exists("memory.peak")
        self.peak_resets = self._has_peak and self._keep_peak()

    def prepare(self) -> None:
        self._files.keep("memory.max", os.O_WRONLY)

    def settle(self) -> None:
        self._files.release("memory.max")

    def set_limit(self, limit_bytes: int | None) -> None:
        self._files.write("memory.max", "max" if limit_bytes is None else str(limit_bytes))

    def usage_bytes(self) -> int:
        return int(self._files.read("memory.current"))

    def peak_bytes(self) -> int:
        return int(self._files.read("memory.peak")) if self._has_peak else self.usage_bytes()

    def reset_peak(self) -> None:
        if self.peak_resets:
            self._files.write("memory.peak", "reset")

    def oom_kills(self) -> int:
        return self._files.read_field("memory.events", "oom_kill")

    def reclaim(self) -> None:
        if not self._files.exists("memory.reclaim"):  # Since 5.19.
            return
        try:
            self._files.write("memory.reclaim", str(self.usage_bytes()))
        except BlockingIOError:  # Not everything could be reclaimed; the caller reads the usage again.
            return

    def cache_bytes(self) -> int:
        stat = self._files.read_field
        return stat("memory.stat", "file") - stat("memory.stat", "shmem")

    def _keep_peak(self) -> bool:
        # A reset counts for the fd that wrote it only, so that fd is kept. Before 6.12 it opens, and refuses the write.
        try:
            self._files.keep("memory.peak", os.O_RDWR)
            self._files.write("memory.peak", "reset")
        except OSError:
            self._files.release("memory.peak")
            return False
        return True


class Cpu:
    """The CPU bandwidth of one cgroup, `cpus` whole CPUs' time in each period of 100 ms, and its weight among its siblings."""

    def __init__(self, files: CgroupFiles, version: int) -> None:
        self._files = files
        self._file, self._unlimited = ("cpu.cfs_quota_us", "-1") if version == 1 else ("cpu.max", "max")
        self._weight_file, self._weights = "cpu.shares" if version == 1 else "cpu.weight", _WEIGHTS[version]
        if version == 1:
            files.write("cpu.cfs_period_us", str(CPU_PERIOD_US))

    def prepare(self) -> None:
        self._files.keep(self._file, os.O_WRONLY)

    def settle(self) -> None:
        self._files.release(self._file)

    def set_limit(self, cpus: float | None) -> None:
        quota = self._unlimited if cpus is None else str(max(_LEAST_QUOTA_US, round(cpus * CPU_PERIOD_US)))
        self._files.write(self._file, quota if self._file == "cpu.cfs_quota_us" else f"{quota} {CPU_PERIOD_US}")

    def set_weight(self, weight: Weight) -> None:
        """Set its part of the time that its siblings compete for."""
        self._files.write(self._weight_file, self._weights[weight])


class Pids:
    """The number of tasks (threads too) of one cgroup; the file is the same in v1 and v2."""

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files

    def prepare(self) -> None:
        self._files.keep("pids.max", os.O_WRONLY)

    def settle(self) -> None:
        self._files.release("pids.max")

    def set_limit(self, tasks: int | None) -> None:
        self._files.write("pids.max", "max" if tasks is None else str(tasks))
