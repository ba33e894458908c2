"""How a forked child becomes a handler sandbox, or a Zygote of its own, before any code of a user runs in it.

The order is the contract: the cgroups were first (`linux.clone`), so that every page is charged right; then the uid, the
root, the descriptors; last what cannot be taken back: capabilities, no_new_privs, seccomp (DESIGN 3). A step that fails
raises, and the caller reports it and exits: no half-confined child goes on.
"""

from __future__ import annotations

import os
import resource

from zygote import linux

SANDBOX_UID = 1000
"""The uid and gid of every handler inside its user namespace; outside, each sandbox has its own."""

SANDBOX_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
CHANNEL_FD = 3
"""Where a child keeps its one connection to the daemon: the channel of a sandbox, the control socket of a Zygote."""


def await_id_maps(ready_fd: int) -> None:
    """Wait for the parent to write our uid_map. Raises ConnectionError when it died or failed before."""
    if os.read(ready_fd, 1) != b"1":
        raise ConnectionError("the Zygote ended before it wrote the uid_map")


def confine_sandbox(
    root: int, channel: int, output: int, null: int, maps_ready: int, seccomp: linux.SeccompFilter
) -> None:
    """Everything between clone() and user code. Afterwards: own uid, no capability, own root, fds 0-3 and no more.

    Args:
        root: the detached mount tree; channel: our end of the socketpair; output: pipe for stdout and stderr;
        null: /dev/null for stdin; maps_ready: pipe that the parent writes to when our uid_map stands.
        seccomp: the handler's filter."""
    linux.drop_bounding_set()  # while the parent writes the maps
    await_id_maps(maps_ready)
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    linux.set_dumpable()
    linux.chroot_to(root)
    os.setsid()
    keep_only(channel, null, output)
    linux.lock_securebits()
    linux.NO_CAPABILITIES.apply()
    linux.set_no_new_privs()
    seccomp.install()


def confine_zygote(control: int, null: int, maps_ready: int, seccomp: linux.SeccompFilter) -> None:
    """Everything between clone() and the first import: root of an own user namespace, its block of uids, fds 0-3."""
    await_id_maps(maps_ready)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    linux.set_dumpable()  # else our own children's uid_map files would belong to the host's root
    os.setsid()
    keep_only(control, null, null)
    linux.set_no_new_privs()
    seccomp.install()


def keep_only(connection: int, stdin: int, output: int) -> None:
    """Leave this process with stdin, stdout, stderr and its one connection at CHANNEL_FD; close all else.

    None of the three may be 0, 1 or 2: a process of the farm has /dev/null there from the start."""
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if connection != CHANNEL_FD:
        os.dup2(connection, CHANNEL_FD, inheritable=False)
    linux.close_fds_from(CHANNEL_FD + 1)


def limit_resources() -> None:
    """The limits that all children of the root Zygote inherit (getrlimit(2)).

    RLIMIT_CORE is 1, not 0: a core pattern that starts with `|` ignores 0 and honours 1 (core(5)), and no dump is that
    small, so a crash leaves nothing either way."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def limit_open_files(count: int) -> None:
    """Lower RLIMIT_NOFILE for this sandbox; the pids, memory and CPU limits are the cgroup's."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(count, hard) if hard != resource.RLIM_INFINITY else count
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
