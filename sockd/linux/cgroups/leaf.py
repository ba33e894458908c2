"""Cgroup: one leaf, in every hierarchy at once, and everything running in it.

Owns: the directories and the fds kept of their files. Knows nothing of sandboxes, of pools or of which limits are right.
The layout differs between hosts (`hierarchies`); no module above this one sees that.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sockd.linux.bpf.address_guard import Endpoint, Network, deny_networks
from sockd.linux.bpf.socket_counts import UNCOUNTED, SocketCounts
from sockd.linux.cgroups.cgroup_limits import CgroupLimits
from sockd.linux.cgroups.controllers import LEFTOVER_BYTES, Cpu, Memory, MemoryV1, MemoryV2, Pids
from sockd.linux.cgroups.files import CgroupFiles
from sockd.linux.cgroups.hierarchies import Controller, Hierarchies
from sockd.linux.cgroups.population import Population, PopulationV1, PopulationV2
from sockd.linux.processes.cpu_times import CpuTimes, read_cpu_times
from sockd.linux.readiness import readable


class Cgroup:
    """A leaf `name`. Made by `CgroupTree.cgroup`; gone after `remove`.

    Fresh and after `scrub` it is *prepared*: joining and limiting it are single writes to open fds (10 fds on a hybrid
    host). `settle` closes those that only a sandbox's start needs and leaves the three that freeze and kill it."""

    def __init__(
        self,
        name: str,
        files: Sequence[CgroupFiles],
        memory: Memory,
        cpu: Cpu,
        pids: Pids,
        population: Population,
        counts: SocketCounts,
    ) -> None:
        self.name = name
        self.limits = CgroupLimits(memory, cpu, pids)
        self.sockets = counts.account()
        """The IP sockets that were made in it and are open, wherever, and their limit. A new cgroup has no limit, and is not
        counted: what is no sandbox or Zygote, such as the initscript engine, takes nothing from them."""
        self._files = files
        self._memory = memory
        self._cpu = cpu
        self._pids = pids
        self._population = population
        self._counts = counts
        self._oom_kills_before = 0
        self._procs_fds: tuple[int, ...] = ()
        self._is_guarded = False

    @classmethod
    def create(cls, hierarchies: Hierarchies, parent: str, name: str, counts: SocketCounts = UNCOUNTED) -> Cgroup:
        """Make the leaf `parent/name` in every hierarchy (240 us, blocking) and prepare it.

        Args: counts: where its sockets are counted.
        Raises: FileExistsError; OSError for what the kernel refuses. Then nothing is left behind."""
        with ExitStack() as undo:
            by_base = {}
            for base in hierarchies.bases:
                path = os.path.join(base, parent, name)
                os.mkdir(path)
                undo.callback(os.rmdir, path)
                by_base[base] = CgroupFiles(path)
                undo.callback(by_base[base].close)
            # mypy: CgroupTree refuses hierarchies that miss any of these.
            memory, cpu, pids = hierarchies.memory, hierarchies.cpu, hierarchies.pids
            assert memory and cpu and pids
            cgroup = cls(
                name,
                tuple(by_base.values()),
                _memory(by_base[memory.base], memory),
                Cpu(by_base[cpu.base], cpu.version),
                Pids(by_base[pids.base]),
                _population(hierarchies, by_base),
                counts,
            )
            undo.callback(cgroup.sockets.close)
            counts.enroll(cgroup._files[0].path, cgroup.sockets)
            undo.callback(counts.withdraw, cgroup._files[0].path)
            cgroup.prepare()
            undo.pop_all()
            return cgroup

    @property
    def procs_fds(self) -> tuple[int, ...]:
        """One fd per hierarchy, v2 first, to be written `b"0"` by the process that joins; the kernel checks root's rights,
        who opened them, and not the writer's. Only while prepared."""
        if not self._procs_fds:
            self._procs_fds = tuple(files.keep("cgroup.procs", os.O_WRONLY) for files in self._files)
        return self._procs_fds

    @property
    def events_fd(self) -> int:
        """The fd of v2's cgroup.events, which tells a change by POLLPRI; -1 on a host without v2."""
        return self._population.events_fd

    @property
    def reusable(self) -> bool:
        """Whether `scrub` can make it as good as new: v2's memory.peak cannot be reset before Linux 6.12."""
        return self._memory.peak_resets

    def prepare(self) -> None:
        """Open what a sandbox's start needs."""
        self.procs_fds  # noqa: B018 - opens them
        for controller in (self._memory, self._cpu, self._pids):
            controller.prepare()

    def settle(self) -> None:
        """Close what only a sandbox's start needs: with thousands of idle sandboxes, fds are what runs out first."""
        self._procs_fds = ()
        for files in self._files:
            files.release("cgroup.procs")
        for controller in (self._memory, self._cpu, self._pids):
            controller.settle()

    def deny_networks(self, denied: Sequence[Network], exceptions: Iterable[Endpoint]) -> None:
        """Refuse to send from the host's network to these, until it is removed: `scrub` does not undo this.

        Raises: OSError: as `address_guard.deny_networks`, or there is no v2 hierarchy."""
        if self.events_fd < 0:
            raise OSError(errno.EOPNOTSUPP, "there is no cgroup hierarchy of version 2")
        self._is_guarded = True
        _ = deny_networks(self._files[0].path, denied, exceptions)

    # -- use

    def memory_bytes(self) -> int:
        """What is charged to it now. Pages shared with a Zygote since a fork are charged to the Zygote's."""
        return self._memory.usage_bytes()

    def peak_bytes(self) -> int:
        """The most that was charged to it since it was made, scrubbed or `reset_peak`."""
        return self._memory.peak_bytes()

    def reset_peak(self) -> None:
        """Start the peak anew from the current use; nothing happens where not `reusable`."""
        self._memory.reset_peak()

    def oom_kills(self) -> int:
        """How often the kernel killed in it for the memory limit, since it was made or scrubbed."""
        return self._memory.oom_kills() - self._oom_kills_before

    def pids(self) -> list[int]:
        """Its processes, as seen from our pid namespace."""
        return sorted({pid for files in self._files for pid in files.pids()})

    def cpu_times(self) -> CpuTimes:
        """CPU time of its threads, and how long they waited for a CPU; zeros where that cannot be read. Raises nothing."""
        try:
            return read_cpu_times(self._files[0].threads())
        except OSError:
            return CpuTimes(0, 0)

    # -- life and death

    def freeze_nowait(self) -> None:
        """Stop everyone in it; they stop some microseconds later, and use no CPU until `thaw_nowait`."""
        self._population.freeze()

    async def wait_frozen(self, deadline_s: float) -> None:
        """Wait until everyone in it has stopped, after `freeze_nowait`. Raises: TimeoutError, also where nothing freezes."""
        async with asyncio.timeout(deadline_s):
            while not self._population.is_frozen():
                await _next_change(self._population)

    def thaw_nowait(self) -> None:
        """Let everyone go on."""
        self._population.thaw()

    def kill_nowait(self) -> None:
        """SIGKILL to everyone in it, frozen or not. They are dead when `wait_empty` returns."""
        self._population.kill()

    def populated(self) -> bool:
        """Whether a process is left in it; zombies do not count."""
        return self._population.populated()

    async def wait_empty(self, deadline_s: float) -> None:
        """Wait until no process is left in it.

        Args:
            deadline_s: how long, in seconds from now.
        Raises: TimeoutError, naming who is left, with what each hierarchy says."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.populated():
                    await _next_change(self._population)
        except TimeoutError as error:
            seen = ", ".join(files.population() for files in self._files)
            words = f"cgroup {self.name}: still populated after {deadline_s} s by {self.pids()}: {seen}"
            raise TimeoutError(words) from error

    @property
    def has_leftover(self) -> bool:
        """Whether so much charge is left in an empty cgroup that `scrub` must take it back, which blocks for some ms."""
        return self._memory.usage_bytes() > LEFTOVER_BYTES

    def scrub(self) -> bool:
        """Make an empty cgroup as good as new: peak, counters (20 us), and leftover charge, if it `has_leftover`. Its limits
        stay, as the next sandbox is likely to have the same.

        Returns: False when it should be removed instead. Page cache that its processes read first stays charged to it;
        taking that back would throw out of memory what the next sandbox is about to read, while removing the cgroup
        leaves the pages where they are."""
        self.thaw_nowait()
        if self._is_guarded:
            return False
        if self.sockets.open:  # another sandbox was given one, and must not make the next function here pay for it
            return False
        self.sockets.limit()
        self.limits.restore_weight()
        if self.has_leftover:
            if self._memory.cache_bytes() > LEFTOVER_BYTES:
                return False
            self._memory.reclaim()
            if self.has_leftover:
                return False
        self._memory.reset_peak()
        self._oom_kills_before = self._memory.oom_kills()
        self.prepare()
        return self.reusable

    def close(self) -> None:
        """Close all fds; the directories stay."""
        self._procs_fds = ()
        for files in self._files:
            files.close()

    def remove(self) -> None:
        """Remove the directories (85 us, blocking) and close all fds.

        Raises: OSError EBUSY: it is not empty; then it can be tried again after a `kill_nowait` and a `wait_empty`."""
        self._counts.withdraw(self._files[0].path)  # first: it needs the directory
        for files in reversed(self._files):  # v2's last: as long as another is busy, v2 kills and tells who is left
            remove_directory(files.path)
        self.sockets.close()
        self.close()


def remove_directory(path: str) -> None:
    """rmdir of a cgroup that is, or was already. Raises OSError EBUSY: it has processes or children."""
    with suppress(FileNotFoundError):
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # The kernel reports `populated 0` hierarchy by hierarchy as the last task leaves; reading the list waits for the lock
            # under which it leaves all of them.
            Path(path, "cgroup.procs").read_bytes()
            os.rmdir(path)


def _memory(files: CgroupFiles, controller: Controller) -> Memory:
    return MemoryV1(files) if controller.version == 1 else MemoryV2(files)


def _population(hierarchies: Hierarchies, by_base: dict[str, CgroupFiles]) -> Population:
    if hierarchies.unified is not None:
        return PopulationV2(by_base[hierarchies.unified])
    freezers = [by_base[hierarchies.freezer.base]] if hierarchies.freezer is not None else []
    return PopulationV1(tuple(by_base.values()), freezers)


async def _next_change(population: Population) -> None:
    watch = population.watch()
    if watch is None:
        await asyncio.sleep(0)
        return
    try:
        await readable(watch.fileno())
    finally:
        watch.close()
