"""Whether the limits that the cgroup pool sets are there, as another reader sees them: on hosts with cgroups of version 1.

The reader is cgroupspy, which has nothing in common with our code. It knows version 1 alone; of the controllers that sockd limits
it reads memory and cpu.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from importlib.util import find_spec

from sockd.base.extras import installing
from sockd.client.cli.doctor.checks import Check
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies

NAME = "cgroup limits"
MEMORY_BYTES, PIDS, CPUS = 64 << 20, 16, 0.5
REMOVE_S = 5.0


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


def cgroup_limits() -> Check:
    """A cgroup with limits, made as those of sandboxes and read by cgroupspy."""
    hierarchies = Hierarchies.detect()
    memory, cpu = hierarchies.memory, hierarchies.cpu
    if memory is None or cpu is None or (memory.version, cpu.version) != (1, 1):
        return Check(NAME, True, "version 2: the kernel's own, and cgroupspy reads version 1 alone")
    if find_spec("cgroupspy") is None:
        found = "not tested: the test reads limits with cgroupspy, which is not installed"
        return Check(NAME, None, found, installing("doctor"))
    try:
        seen = _limits_as_read(hierarchies, memory.base, cpu.base)
    except OSError as error:
        return Check(NAME, None, f"not tested: {error}", "run sockd doctor as root")
    if (seen.memory_bytes, seen.cpus) != (MEMORY_BYTES, CPUS):
        found = f"cgroupspy reads {seen.memory_bytes} bytes and {seen.cpus:g} processors, not {MEMORY_BYTES} and {CPUS}"
        return Check(NAME, False, found, "use a kernel with CONFIG_MEMCG and CONFIG_CFS_BANDWIDTH")
    return Check(NAME, True, f"cgroupspy reads what was set: {MEMORY_BYTES >> 20} MB, {CPUS} processors")


def _limits_as_read(hierarchies: Hierarchies, memory: str, cpu: str) -> Limits:
    """Raises: OSError."""
    tree = CgroupTree.create(hierarchies, f"sockd-doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        leaf = tree.cgroup("limits")
        try:
            leaf.limits.set(MEMORY_BYTES, PIDS, CPUS)
        finally:
            leaf.close()
        return read_limits(*(os.path.join(base, tree.name, "limits") for base in (memory, cpu)))
    finally:
        tree.destroy_all(REMOVE_S)


def read_limits(memory_directory: str, cpu_directory: str) -> Limits:
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
