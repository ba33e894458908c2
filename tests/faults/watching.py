"""What an attack does to everybody else: a neighbour while it lasts, and what of the host is gone afterwards.

A neighbour's wrong answer fails a test, and so does what is not given back; how long the neighbour took is reported, and fails
nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.daemon.kernel_view import cgroup_directories, rss_kb
from tests.faults import flood
from tests.support.cases import Happened
from tests.support.private_worker import PrivateWorker
from tests.support.watch import Watch

MB = 1 << 20
T = TypeVar("T")
AIM = 2.0
"""What the neighbour's p99 should stay within, in units of its undisturbed one."""
SAMPLES = 300
"""Undisturbed calls."""
GAP_S = 0.002
"""Between two calls of the neighbour."""
BACK_S = 40.0
"""By when all of it must be back, on a busy host, too."""
SLACK_BYTES = 24 * MB
"""The slack of memory: spares, and pages of a Zygote that a fork has copied, come and go."""
SLACK_PROCESSES = 8
SLACK_DISK_BYTES = MB
_TICK_S = 0.02


@dataclass(frozen=True)
class Taken:
    """What a worker has of its host, and what the host has left."""

    memory_bytes: int
    """Anonymous and shared memory charged to its cgroups, those of dead sandboxes too, and the daemon's own."""
    disk_bytes: int
    processes: int
    host_available_bytes: int
    host_disk_free_bytes: int

    @classmethod
    def by(cls, worker: PrivateWorker) -> Taken:
        state = worker.daemon.state
        disk = os.statvfs(state)
        return cls(
            charged_bytes(worker.daemon.cgroup) + rss_kb(worker.daemon.pid) * 1024,
            disk_usage(state),
            len(worker.daemon.pids()),
            memory_available(),
            disk.f_bavail * disk.f_frsize,
        )

    def excess(self, before: Taken) -> str:
        """What is taken now and was not before, beyond what comes and goes; empty when all is back."""
        found = []
        if self.memory_bytes > before.memory_bytes + SLACK_BYTES:
            found.append(f"{(self.memory_bytes - before.memory_bytes) / MB:.0f} MB of memory")
        if self.disk_bytes > before.disk_bytes + SLACK_DISK_BYTES:
            found.append(f"{(self.disk_bytes - before.disk_bytes) / MB:.0f} MB of disk")
        if self.processes > before.processes + SLACK_PROCESSES:
            found.append(f"{self.processes - before.processes} processes")
        return ", ".join(found)

    def compared(self, before: Taken) -> str:
        """In words, with what others on the host do in the meantime."""
        free = (self.host_available_bytes - before.host_available_bytes) / MB
        disk = (self.host_disk_free_bytes - before.host_disk_free_bytes) / MB
        return f"all back (host: {free:+.0f} MB of memory, {disk:+.1f} MB of disk)"


@contextmanager
def attack(worker: PrivateWorker, happened: Happened) -> Iterator[Watch]:
    """Watch the neighbour during the body, then the host: all that the body's functions took must come back.

    An attack that is soon over is to be made again, `for _ in watch.rounds()`."""
    undisturbed = Watch.undisturbed(worker.caller, GAP_S, SAMPLES)
    before = Taken.by(worker)
    with worker.watching(GAP_S, undisturbed) as watch, less_weight():
        yield watch
    beyond = f", more than the aim of {AIM:.0f}x" if watch.ratio > AIM else ""
    p99s = f"{watch.undisturbed_p99:.1f} -> {watch.p99:.1f} ms, {watch.ratio:.1f}x"
    happened(f"neighbour p99 {p99s} of {len(watch.ms)}{beyond}")
    assert watch.ms and not watch.wrong, watch.wrong[:3]
    worker.settle()
    happened(await_return(worker, before))


@contextmanager
def less_weight() -> Iterator[None]:
    """Take less of the processors that the worker wants, as attackers are other machines: this session, to which neither the
    worker nor the neighbour's caller belongs, where the kernel groups by sessions (sched(7)); the group of init's own has no
    weight of its own, and reads as empty. The least weight would stop the test on a busy host."""
    nice = Path("/proc/self/autogroup")
    group = nice.read_text().split() if nice.exists() else []
    if not group:
        yield
        return
    nice.write_text(str(flood.NICE))
    try:
        yield
    finally:
        nice.write_text(group[-1])


def await_return(worker: PrivateWorker, before: Taken) -> str:
    """Wait until a worker has no more than before; in words. Raises: AssertionError naming what is not given back."""
    ends = time.monotonic() + BACK_S
    tick = threading.Event()
    while excess := (now := Taken.by(worker)).excess(before):
        assert time.monotonic() < ends, f"not given back: {excess}"
        tick.wait(_TICK_S)
    return now.compared(before)


def charged_bytes(cgroup: str) -> int:
    """Anonymous and shared memory that a cgroup and all below it are charged for; page cache is the host's to drop."""
    for directory in cgroup_directories(cgroup):
        try:
            lines = (directory / "memory.stat").read_text().splitlines()
        except FileNotFoundError:
            continue
        stat = {key: int(value) for key, value in (line.split() for line in lines)}
        names = ("total_rss", "total_shmem") if "total_rss" in stat else ("anon", "shmem")
        return sum(stat[name] for name in names)
    raise AssertionError(f"no memory controller has {cgroup}")


def memory_available() -> int:
    """What the host could give to a new program."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable:")]
    return int(line.split()[1]) * 1024


def disk_usage(directory: Path) -> int:
    """Bytes of blocks that a tree takes, mounts below it not counted."""
    device = directory.stat().st_dev
    total = 0
    for top, directories, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(os.path.join(top, name))
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512
        directories[:] = [name for name in directories if _device(os.path.join(top, name)) == device]
    return total


def _device(path: str) -> int:
    try:
        return os.lstat(path).st_dev
    except FileNotFoundError:
        return -1


def is_at_rest(worker: PrivateWorker) -> bool:
    """Whether nobody is busy, and each sandbox that the worker tells of, a spare or not, is one process and no other is."""
    counts = worker.daemon.status()["sandboxes"]
    return bool(counts["busy"] == 0) and len(worker.processes("sandbox")) == sum(counts.values())


def most_during(call: Callable[[], T], measure: Callable[[], int]) -> tuple[T, int]:
    """The result of a call that runs in a thread, and the largest value of `measure` seen meanwhile."""
    most = 0
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        while True:
            most = max(most, measure())
            try:
                return future.result(_TICK_S), most
            except TimeoutError:
                continue


def ms_until(condition: Callable[[], bool], *, deadline_s: float = BACK_S) -> float:
    """How long it takes until the condition holds. Raises: AssertionError after the deadline."""
    started = time.monotonic()
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < started + deadline_s, "it did not come to be"
        tick.wait(0.005)
    return (time.monotonic() - started) * 1000
