"""What sockd does in one way on newer kernels and in another on older ones: one table, and what was found on this kernel.

Each way is tried, best first; no version of a kernel is read for it. A worker that is configured to be as on an older kernel
(`sandbox.kernel`) takes the way that it would take there, so that every way runs on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sockd.base.errors import BadConfig
from sockd.linux import mounts, procfs, syscalls
from sockd.linux.processes import pidfds
from sockd.linux.syscalls import MountAttr

Release = tuple[int, int]
"""(6, 18) for Linux 6.18."""
DETACHED, ATTACHED = "detached", "attached"
NAMESPACE, CHILD = "namespace", "child"
PIDFD, PARENT = "pidfd", "parent"


class Way(NamedTuple):
    """One way to have a feature."""

    name: str
    since: Release
    """The first kernel that has it."""
    words: str
    """How it is had, for people."""
    cost: str
    """What it costs against the best way; empty for that."""
    why_not: Callable[[], str]
    """Try it: the kernel's words if it cannot be had, or nothing."""


def _always() -> str:
    return ""


def _why_not_detached() -> str:
    """The kernel's words if nothing can be mounted into a tree that is attached nowhere. Nothing stays behind."""
    try:
        with mounts.owned(syscalls.new_filesystem("tmpfs", {}, MountAttr.NONE)) as tree:
            for name in ("source", "copy"):
                os.mkdir(name, dir_fd=tree)
            mounts.attach_copy(tree, tree, "copy")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _no_status() -> str:
    return "" if pidfds.tells_exit_status() else "no exit status by PIDFD_GET_INFO"


class Feature(NamedTuple):
    """Something that is had in one of several ways, best first; the last is had everywhere."""

    title: str
    ways: tuple[Way, ...]


OLDEST: Release = (5, 14)
"""The oldest kernel that sockd runs on."""
TABLE: dict[str, Feature] = {
    "roots": Feature(
        "roots of sandboxes",
        (
            Way(DETACHED, (6, 15), "detached trees", "", _why_not_detached),
            Way(ATTACHED, OLDEST, "a mount namespace for each sandbox", "0.1 ms at each start", _always),
        ),
    ),
    "proc": Feature(
        "/proc of a sandbox",
        (
            Way(NAMESPACE, (6, 18), "made for its pid namespace", "", procfs.why_not_by_namespace),
            Way(CHILD, OLDEST, "opened by a child in its pid namespace", "0.1 to 0.2 ms at each start", _always),
        ),
    ),
    "exits": Feature(
        "exit statuses",
        (
            Way(PIDFD, (6, 15), "read from pidfds", "", _no_status),
            Way(PARENT, OLDEST, "reported by the parent process", "0.1 ms when a sandbox ends by itself", _always),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The way in which a feature is had."""

    way: Way
    reason: str
    """Why it is not the best one; empty if it is."""

    @property
    def name(self) -> str:
        """The way's name."""
        return self.way.name

    @property
    def words(self) -> str:
        """The way, and if it is not the best one why and what that costs, for people."""
        return f"{self.way.words}; {self.way.cost} ({self.reason})" if self.reason else self.way.words


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of one worker."""

    roots: Found
    proc: Found
    exits: Found

    def procfs(self) -> procfs.Procfs:
        """What makes a procfs for each sandbox; the caller closes it."""
        return procfs.ByNamespace() if self.proc.name == NAMESPACE else procfs.ByChild()

    def words(self) -> dict[str, str]:
        """Each feature's way, for people."""
        return {feature: getattr(self, feature).words for feature in TABLE}

    @classmethod
    def find(cls, kernel: Release | None = None, roots: str = "auto") -> Ways:
        """Try each way.

        Args:
            kernel: take none that is newer than this one; None: any.
            roots: the way of the roots (`sandbox.roots`); auto: the best.
        Raises: BadConfig: that way cannot be had."""
        return cls(
            _best("roots", kernel, "" if roots == "auto" else roots), _best("proc", kernel), _best("exits", kernel)
        )


def _best(feature: str, kernel: Release | None, asked: str = "") -> Found:
    """Raises: BadConfig: the way that was asked for cannot be had."""
    reason = ""
    for way in TABLE[feature].ways:
        if asked not in ("", way.name):
            why = f"sandbox.{feature}"
        elif kernel is not None and way.since > kernel:
            why = "sandbox.kernel"
        else:
            why = way.why_not()
        if not why:
            return Found(way, reason)
        if way.name == asked:
            raise BadConfig(f'sandbox.{feature} = "{asked}" is not to be had: {why}')
        reason = reason or why
    raise AssertionError("the last way is had everywhere")
