"""The worker's own process: limits, scheduling and memory, set once before anything is built.

Owns nothing.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import logging
import os
import resource
from pathlib import Path

import sockd_initscripts
import sockd_storage_lib
import sockd_zygote
from sockd.linux import allocator, mounts, syscalls
from sockd.linux.processes import oom_score

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
FDS_OF_SANDBOX = 8
"""What an idle sandbox holds of the worker's (measured, on cgroup v1 and v2 together)."""
FDS_OF_THE_REST = 256
FDS_AT_ONCE = 1 << 14
"""As many as a thousand idle sandboxes and all of `http.max_connections` hold: 128 KB of the kernel's memory."""

_log = logging.getLogger(__name__)


def set_up_process() -> None:
    """Prepare this process for a worker, in a mount namespace of its own."""
    raise_open_files()
    take_short_slices()
    forbid_core_dumps()
    protect_from_oom()
    allocator.return_large_blocks()
    syscalls.close_on_exec_from(3)  # uvloop's children inherit what is not (measured, whatever close_fds says)
    mounts.enter_private_namespace()


def raise_open_files() -> None:
    """Each idle sandbox holds several descriptors: take all that the hard limit gives, and room for many of them now.

    The kernel's table grows when a number is larger than all before, and waits for the other processors then
    (expand_fdtable: synchronize_rcu), since we have threads: 10 ms and more, at the 257th connection of a crowd, the 513th ..."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(os.devnull) as any_file:
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, min(hard, FDS_AT_ONCE) - 1))


def take_short_slices() -> None:
    """Every request passes through this thread, mostly for less than 0.1 ms: it should not wait until somebody who computes
    has had 3 to 4 ms. It gets no more of the processor for it."""
    with contextlib.suppress(OSError):  # a kernel without it, or a seccomp filter around us
        syscalls.set_time_slice(syscalls.SHORTEST_SLICE_NS)


def forbid_core_dumps() -> None:
    """Ours would hold events and environments. 1, not 0: a core pattern with a pipe takes no notice of 0 (core(5)). But a hard
    limit of 0 only CAP_SYS_RESOURCE raises, and without a pipe it does as well."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        pattern = CORE_PATTERN.read_text().strip()
        if pattern.startswith("|"):
            _log.warning(
                "the core limit is 0 and cannot be raised (CAP_SYS_RESOURCE), so each crash of a function starts %s: "
                "`sysctl -w kernel.core_pattern=core`, or start sockd with a hard limit of 1 (`ulimit -Hc 1`)",
                pattern[1:].split()[0],
            )


def protect_from_oom() -> None:
    """All functions end with this process: of a host that runs out of memory it should be the last to go."""
    if not oom_score.protect_ourselves():
        _log.warning("oom_score_adj cannot be lowered (CAP_SYS_RESOURCE): the OOM killer may take the daemon")


def affordable_idle(idle_limit: int) -> int:
    """As many idle sandboxes as our descriptors are enough for. The APIs and what is starting need some, too: without them
    not even an eviction could be requested."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = max(1, (soft - max(soft // 5, FDS_OF_THE_REST)) // FDS_OF_SANDBOX)
    if affordable < idle_limit:
        _log.warning("%d open files are enough for %d idle sandboxes, not for %d", soft, affordable, idle_limit)
    return min(idle_limit, affordable)


def compile_ours() -> None:
    """Write the bytecode of our packages that are imported where nothing can be written: sandboxes and the engine would
    compile them at each start. As far as it goes: where we may not write, an installer has done it."""
    for package in (sockd_initscripts, sockd_storage_lib, sockd_zygote):
        compileall.compile_dir(os.path.dirname(str(package.__file__)), quiet=2)
