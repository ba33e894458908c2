"""Cgroups: sockd's own part of the host's cgroup tree, one directory in each hierarchy and the leaves in it.

Owns: the directories `sockd-<id>` and all below them, also those that a dead daemon left. Knows nothing of what runs in
the leaves. `Cgroup` and `Hierarchies` are offered here too: this is the module that the areas above import.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

from sockd.base.errors import SandboxFailed
from sockd.linux.bpf.address_guard import Endpoint, Network, deny_networks
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import NO_LIMIT, UNCOUNTED, SocketCounts
from sockd.linux.cgroups.files import CgroupFiles
from sockd.linux.cgroups.hierarchies import CONTROLLERS, Hierarchies
from sockd.linux.cgroups.leaf import Cgroup, remove_directory
from sockd.linux.cgroups.population import Population, PopulationV1, PopulationV2

__all__ = ["Cgroup", "CgroupTree", "Hierarchies"]

_HOME = "sockd-main"
"""Where the processes of a delegated v2 cgroup go, as a cgroup with controllers may have none of its own."""


class CgroupTree:
    """The directory `name` in every hierarchy. The constructor only names it, so it can be pointed at leftovers."""

    def __init__(self, hierarchies: Hierarchies, name: str) -> None:
        self.hierarchies = hierarchies
        self.name = name
        self.ports = PortGuard()
        self.sockets = UNCOUNTED

    @classmethod
    def create(cls, hierarchies: Hierarchies, name: str) -> CgroupTree:
        """Make the directories, or take those that are there, and switch the controllers on below them.

        Raises: SandboxFailed: this host has no usable memory, cpu or pids controller; OSError: not allowed."""
        if hierarchies.missing:
            raise SandboxFailed(f"this host has no cgroup controller for: {', '.join(hierarchies.missing)}")
        tree = cls(hierarchies, name)
        for base in hierarchies.bases:
            if base == hierarchies.unified:
                tree._create_v2(base)
            else:
                Path(base, name).mkdir(exist_ok=True)
        tree._switch_swap_off()
        return tree

    def guard_ports(self) -> None:
        """Refuse the ports of `ports` to everything in the tree.

        Raises: OSError: this kernel or our capabilities do not suffice, or there is no v2 hierarchy."""
        self.ports = PortGuard.attach(self._unified())

    def deny_networks(self, denied: Sequence[Network], exceptions: Iterable[Endpoint]) -> str:
        """Refuse to send from the host's network to these; see `address_guard`.

        Returns: why packets are not guarded, or nothing. Raises: as `guard_ports`."""
        return deny_networks(self._unified(), denied, exceptions)

    def count_sockets(self, most: int = NO_LIMIT) -> None:
        """Count the sockets of all leaves that are made from now on. Args: most: of all together. Raises: as `guard_ports`."""
        self.sockets = SocketCounts.attach(self._unified(), most)

    def limit_tasks(self, most: int) -> None:
        """Limit the processes and threads of the whole tree. Raises: OSError."""
        files = CgroupFiles(os.path.join(self._pids_base, self.name))
        files.write("pids.max", str(most))

    @property
    def tasks_above(self) -> Path:
        """The file with the limit of the cgroup that the tree is in; it is not there at the top of a hierarchy."""
        return Path(self._pids_base, "pids.max")

    @property
    def _pids_base(self) -> str:
        assert self.hierarchies.pids is not None
        return self.hierarchies.pids.base

    def _unified(self) -> str:
        if self.hierarchies.unified is None:
            raise OSError(errno.EOPNOTSUPP, "there is no cgroup hierarchy of version 2")
        return os.path.join(self.hierarchies.unified, self.name)

    def close(self) -> None:
        """Let go of the maps of `ports` and `sockets`; the directories stay, and what is attached to them."""
        self.ports.close()
        self.sockets.close()

    def cgroup(self, name: str) -> Cgroup:
        """Make a leaf (240 us, blocking). Raises: FileExistsError, OSError."""
        return Cgroup.create(self.hierarchies, self.name, name, self.sockets)

    @property
    def directories(self) -> tuple[str, ...]:
        """The tree's directory in every hierarchy, v2 first."""
        return tuple(os.path.join(base, self.name) for base in self.hierarchies.bases)

    def destroy_all(self, deadline_s: float) -> None:
        """Kill every process in the tree, wait until all are gone, and remove it; nothing happens if it is not there.

        Blocks: before the daemon serves, and after. Raises: TimeoutError: one does not die; OSError EBUSY: one comes again."""
        deadline = monotonic() + deadline_s
        while True:
            with ExitStack() as opened:
                for population in self._populations(opened):
                    _kill_and_wait(population, deadline)
            try:
                self._remove()
                return
            except OSError as error:
                # Somebody joined meanwhile: a child that a daemon had made before it was killed, on its way to its cgroup.
                if error.errno != errno.EBUSY or monotonic() > deadline:
                    raise

    def _remove(self) -> None:
        for top in self.directories:
            for directory in _bottom_up(top):
                remove_directory(directory)

    def _create_v2(self, base: str) -> None:
        top = Path(base, self.name)
        top.mkdir(exist_ok=True)
        on_v2 = [name for name in CONTROLLERS if getattr(self.hierarchies, name).version == 2]
        if not on_v2:
            return
        switches = " ".join(f"+{name}" for name in on_v2)
        try:
            Path(base, "cgroup.subtree_control").write_text(switches)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _vacate(base)
            Path(base, "cgroup.subtree_control").write_text(switches)
        (top / "cgroup.subtree_control").write_text(switches)

    def _switch_swap_off(self) -> None:
        """For the whole tree: v2's limit is hierarchical, v1's swappiness is inherited by cgroups that are made below."""
        memory = self.hierarchies.memory
        assert memory is not None
        files = CgroupFiles(os.path.join(memory.base, self.name))
        with suppress(FileNotFoundError):  # A kernel without swap.
            files.write("memory.swappiness" if memory.version == 1 else "memory.swap.max", "0")

    def _populations(self, opened: ExitStack) -> list[Population]:
        """Everyone in the tree: in v2, and then in v1, where somebody may be left who died half-way through joining."""
        by_top = {}
        for top in self.directories:
            by_top[top] = [CgroupFiles(directory) for directory in _bottom_up(top)]
            for files in by_top[top]:
                opened.callback(files.close)
        populations: list[Population] = []
        unified, freezer = self.hierarchies.unified, self.hierarchies.freezer
        if unified is not None:
            below_v2 = by_top.pop(os.path.join(unified, self.name))
            populations += [PopulationV2(files) for files in below_v2[-1:]]  # The top speaks for all below it.
            freezer = None
        freezers = by_top[os.path.join(freezer.base, self.name)] if freezer is not None else []
        populations.append(PopulationV1([files for below in by_top.values() for files in below], freezers))
        return populations


def _bottom_up(top: str) -> Iterator[str]:
    """Every directory of a tree, children first; nothing if there is no tree."""
    for directory, _, _ in os.walk(top, topdown=False):
        yield directory


def _kill_and_wait(population: Population, deadline: float) -> None:
    population.kill()
    while population.populated():
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise TimeoutError("a process of an earlier daemon does not die")
        watch = population.watch()
        if watch is not None:
            try:
                watch.wait(left_s)
            finally:
                watch.close()


def _vacate(base: str) -> None:
    """Move the processes of a v2 cgroup that was delegated to us into a child: inner cgroups may have none (cgroups(7))."""
    home = Path(base, _HOME)
    home.mkdir(exist_ok=True)
    for pid in CgroupFiles(base).pids():
        with suppress(ProcessLookupError):
            (home / "cgroup.procs").write_text(str(pid))
