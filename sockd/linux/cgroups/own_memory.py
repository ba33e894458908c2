"""How much memory this process may have: the host's, or what its cgroups leave of that.

Owns nothing. Facts are from the kernel's admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sockd.linux.cgroups.hierarchies import parse_mounts


def memory_bytes() -> int:
    """The physical memory, or the least limit of the cgroups that this process is in, if that is less."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([host, *_limits()])


def _limits() -> Iterator[int]:
    paths: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))  # v2 has no controllers in its line
        for mount in parse_mounts(Path("/proc/self/mountinfo").read_text()):
            if mount.version == 2 and "" in paths:
                yield from _limits_up(Path(mount.path), paths[""], "memory.max")
            elif "memory" in mount.options and "memory" in paths:
                yield from _limits_up(Path(mount.path), paths["memory"], "memory.limit_in_bytes")


def _limits_up(mount: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a cgroup and those above it. A path that is not below the mount is another namespace's: as the root's."""
    directory = mount / path.lstrip("/")
    while directory.is_relative_to(mount):
        with suppress(OSError, ValueError):  # none is said at the root, nor as "max"
            yield int((directory / name).read_text())
        directory = directory.parent
