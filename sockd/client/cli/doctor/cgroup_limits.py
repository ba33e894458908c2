"""Whether the limits that the cgroup pool sets are there, as another reader sees them: on hosts with cgroups of version 1."""

from __future__ import annotations

import os
import uuid
from importlib.util import find_spec

from sockd.base.extras import installing
from sockd.client.cli.doctor import cgroup_reader
from sockd.client.cli.doctor.checks import Check
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies

NAME = "cgroup limits"
MEMORY_BYTES, PIDS, CPUS = 64 << 20, 16, 0.5
REMOVE_S = 5.0


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


def _limits_as_read(hierarchies: Hierarchies, memory: str, cpu: str) -> cgroup_reader.Limits:
    """Raises: OSError."""
    tree = CgroupTree.create(hierarchies, f"sockd-doctor-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        leaf = tree.cgroup("limits")
        try:
            leaf.limits.set(MEMORY_BYTES, PIDS, CPUS)
        finally:
            leaf.close()
        return cgroup_reader.read(*(os.path.join(base, tree.name, "limits") for base in (memory, cpu)))
    finally:
        tree.destroy_all(REMOVE_S)
