"""The memory of a worker's sandboxes, as the host's kernel counts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.worker import Worker


def sandbox_pids(target: Worker) -> Iterator[int]:
    """Processes in the worker's sandbox cgroups that descend from it."""
    parents, cgroups = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                cgroups[int(entry.name)] = (entry / "cgroup").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it has just exited
                continue
    for pid, cgroup in cgroups.items():
        if "/sandbox-" in cgroup and descends(pid, target.process.pid, parents):
            yield pid


def descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    """Whether the chain of parents leads from `pid` to `ancestor`."""
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def smaps_rollup_mb(pid: int) -> dict[str, float]:
    """The sums of /proc/PID/smaps_rollup, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) / 1024 for name, _, value in (line.partition(":") for line in lines)}
