"""Hierarchies: where this host keeps its cgroups, of which version, and what each of them can do.

Owns nothing: it is a description, made once from /proc/self/mountinfo. Knows no cgroup of ours.
Facts are from cgroups(7) and the kernel's admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("memory", "cpu", "pids")
"""What a sandbox's limits need."""

Kind = Literal["v1", "hybrid", "v2"]


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One cgroup file system, as mountinfo shows it."""

    path: str
    version: Literal[1, 2]
    options: tuple[str, ...]
    """The options of the file system itself: for v1 they name its controllers."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The directory below which cgroups of one controller are made."""

    base: str
    version: Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """This host's cgroup layout.

    `hybrid` hosts have their controllers on v1 and an empty v2 tree as well; that tree still freezes and kills, which
    v1 does worse (freezer) or not at all."""

    memory: Controller | None
    cpu: Controller | None
    pids: Controller | None
    freezer: Controller | None
    """The v1 freezer; used only where there is no v2 tree."""
    unified: str | None
    """The directory of the v2 tree that is ours to make cgroups in."""

    @classmethod
    def detect(cls) -> Hierarchies:
        """This host's layout. Raises nothing for what is missing: see `missing`."""
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
        unified = next((mount.path for mount in mounts if mount.version == 2), None)
        if unified is None:
            return cls.from_mounts(mounts)
        base = delegated_base(unified, Path("/proc/self/cgroup").read_text())
        on_v2 = Path(base, "cgroup.controllers").read_text().split()
        return cls.from_mounts(mounts, unified=base, on_v2=on_v2)

    @classmethod
    def from_mounts(
        cls, mounts: Iterable[CgroupMount], *, unified: str | None = None, on_v2: Iterable[str] = ()
    ) -> Hierarchies:
        """The layout that these mounts make.

        Args:
            mounts: all cgroup mounts; the first of each controller counts.
            unified: the directory in the v2 tree to work in, if there is such a tree.
            on_v2: the controllers that this directory offers."""
        found: dict[str, Controller] = {}
        for mount in mounts:
            for option in mount.options if mount.version == 1 else ():
                found.setdefault(option, Controller(mount.path, 1))
        if unified is not None:
            # A controller lives on one hierarchy at a time, so v2 offers only what no v1 mount has taken.
            found.update((name, Controller(unified, 2)) for name in on_v2 if name not in found)
        return cls(found.get("memory"), found.get("cpu"), found.get("pids"), found.get("freezer"), unified)

    @property
    def kind(self) -> Kind:
        """Which of the three layouts this is."""
        if self.unified is None:
            return "v1"
        on_v1 = any(controller.version == 1 for controller in self._controllers())
        return "hybrid" if on_v1 else "v2"

    @property
    def missing(self) -> tuple[str, ...]:
        """What a sandbox needs and this host lacks; empty on a usable host."""
        lacking = [name for name in CONTROLLERS if getattr(self, name) is None]
        if self.unified is None and self.freezer is None:
            lacking.append("freezer")
        return tuple(lacking)

    def usable_cpus(self) -> float:
        """Processors that may be used: those that are online and in our affinity, and no more than the quota of the cgroup in
        which ours are made."""
        online = float(len(os.sched_getaffinity(0)))
        if self.cpu is None:
            return online
        try:
            if self.cpu.version == 2:
                quota, period = Path(self.cpu.base, "cpu.max").read_text().split()
            else:
                quota, period = (Path(self.cpu.base, f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            return min(online, float(quota) / float(period)) if float(quota) > 0 else online
        except (OSError, ValueError):  # the root of the tree has no quota; "max"
            return online

    @property
    def bases(self) -> tuple[str, ...]:
        """Every directory in which a cgroup has to be made, each once, v2 first.

        v2 is first because a process joins in this order: a process that is in any of them is in the one that can kill."""
        paths = [self.unified] if self.unified is not None else []
        paths += [controller.base for controller in self._controllers()]
        if self.unified is None and self.freezer is not None:
            paths.append(self.freezer.base)
        return tuple(dict.fromkeys(paths))

    def _controllers(self) -> list[Controller]:
        return [controller for controller in (self.memory, self.cpu, self.pids) if controller is not None]


def parse_mounts(mountinfo: str) -> tuple[CgroupMount, ...]:
    """The cgroup mounts in the text of /proc/self/mountinfo (proc_pid_mountinfo(5)), in its order."""
    mounts = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        if not separator:
            continue
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            path = _unescape(before.split(" ")[4])
            mounts.append(CgroupMount(path, 2 if kind == "cgroup2" else 1, tuple(options.split(","))))
    return tuple(mounts)


def delegated_base(mount: str, own_cgroup: str) -> str:
    """Where in the v2 tree we may make cgroups: the cgroup that systemd delegated to us, or else the mount's root.

    Args:
        mount: where the v2 tree is mounted.
        own_cgroup: the text of /proc/self/cgroup.

    systemd marks what it gave away (`Delegate=yes`) by an extended attribute; with `DelegateSubgroup=` we run in a child
    of it. Making cgroups elsewhere works for root, but systemd may undo it."""
    own = next((line[3:] for line in own_cgroup.splitlines() if line.startswith("0::")), "/")
    parts = [part for part in own.split("/") if part]
    if ".." in parts:  # Our cgroup is outside of what our cgroup namespace shows.
        return mount
    while parts:
        path = os.path.join(mount, *parts)
        if _is_delegated(path):
            return path
        parts.pop()
    return mount


def _is_delegated(path: str) -> bool:
    for attribute in ("trusted.delegate", "user.delegate"):
        try:
            if os.getxattr(path, attribute) == b"1":
                return True
        except OSError:  # Not set, or not a directory that we can see: not delegated.
            continue
    return False


def _unescape(path: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(octal, char)
    return path
