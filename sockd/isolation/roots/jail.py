"""What confined processes run in: a base with the host's interpreter, and the software that they import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sockd.isolation.roots.base import Base, Bind, interpreter, software
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.confined.confined_process import Jail
from sockd.linux.confined.software import Places, import_paths


def built(root: Path, places: Places) -> Base:
    """The tree of a jail. Blocks. Raises: OSError."""
    return Base.build(root, (*software(), *(Bind(source, target) for source, target in places)))


def jail_on(
    root: Path, places: Places, take_cgroup: Callable[[], Cgroup], give_back_cgroup: Callable[[Cgroup], None]
) -> Jail:
    """A jail whose tree is, or will be, `built` of the same places."""
    return Jail(root, interpreter(), import_paths(places), take_cgroup, give_back_cgroup)
