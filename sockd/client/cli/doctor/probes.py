"""Probes: try whether this kernel supports what a sandbox needs.

    python -m sockd.client.cli.doctor.probes NAME

Owns nothing: each probe runs in its own process and private mount namespace, because a process cannot leave namespaces that it
entered. Exit status 0 means yes; otherwise the last line of stderr is the kernel's error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sockd.base.config import NetworkConfig
from sockd.base.errors import NetworkUnavailable
from sockd.client.cli.doctor import network_reader
from sockd.images.agent_keeper.fuse_mount import FuseMount
from sockd.isolation.networks.networks import Networks
from sockd.isolation.roots import assembly
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.program import Limits
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux import mounts, syscalls
from sockd.linux.network import network_namespaces
from sockd.linux.ways import OLDEST, Ways
from sockd_zygote import _native, linux

_CLONE_NEWUSER = 0x10000000  # os.CLONE_NEWUSER since Python 3.12.
OVERFLOW_ID = 65534
NO_RESEND = "not across an end of the process that serves them (no FUSE_HAS_RESEND)"
_SANDBOX_NAMESPACES = _CLONE_NEWUSER | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


def attached_root() -> None:
    """Make a root in a mount namespace of its own, and complete it there (Linux 5.14), with a procfs of a pid namespace."""
    place = Path("/tmp")  # in a mount namespace of our own, under a tmpfs of our own
    mounts.mount_tmpfs(str(place), size_bytes=1 << 20)
    for name in (bases.CODE, bases.TMP, bases.PROC):
        (place / "base" / name).mkdir(parents=True)
    mounts.bind_tree(str(place / "base"), str(place / "base"))
    asyncio.run(_complete_root(place / "base"))


async def _complete_root(path: Path) -> None:
    limits = Limits(memory_bytes=0, pids=0, cpus=0, tmp_bytes=1 << 20, tmp_inodes=16)
    attached = assembly.Attached(bases.Base(path), Ways.find(OLDEST), None)
    with mounts.owned(os.pidfd_open(os.getpid())) as pidfd:
        (await attached.create_for_imports(limits, pidfd)).close()
    attached.close()


def host_files() -> None:
    """pivot_root to our own tree. Docker's default seccomp profile refuses it."""
    place = Path("/tmp")
    mounts.mount_tmpfs(str(place), size_bytes=1 << 20)
    (place / "old").mkdir()
    syscalls.pivot_root(str(place), str(place / "old"))


def sandbox_namespaces() -> None:
    """Enter a sandbox's namespaces without a capability over the host's, as a Zygote does, and a user namespace within.

    AppArmor refuses that, or lets it succeed and takes the capabilities away, so one is used after each step."""
    os.setresgid(OVERFLOW_ID, OVERFLOW_ID, OVERFLOW_ID)
    os.setresuid(OVERFLOW_ID, OVERFLOW_ID, OVERFLOW_ID)
    linux.set_dumpable()  # or our own id maps would be root's
    for namespaces in (_SANDBOX_NAMESPACES, _CLONE_NEWUSER | syscalls.CLONE_NEWUTS):
        _enter_as_root(namespaces)
        socket.sethostname("sandbox")


def _enter_as_root(namespaces: int) -> None:
    """Become root in a new user namespace, mapped from the current user (user_namespaces(7))."""
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    syscalls.unshare(namespaces)
    Path("/proc/self/setgroups").write_text("deny")
    for name, outside in ids.items():
        Path("/proc/self", name).write_text(f"0 {outside} 1")


def private_network() -> None:
    """A private network in a host of its own, whose link another implementation of netlink sees as well."""
    network_namespaces.enter(network_namespaces.new())
    network_namespaces.set_sysctl("ipv4/ip_forward", 1)
    seen = asyncio.run(_endpoint_as_read())
    if ["eth0", "UP"] not in seen["links"]:
        raise OSError(f"an endpoint has no link that is up: {seen['links']}")


async def _endpoint_as_read() -> dict[str, list[list[Any]]]:
    networks = await Networks.open(
        NetworkConfig(idle_pools=0), f"{os.getpid():08x}", MemoryBudget(1 << 30).reserve_nowait
    )
    try:
        pool = await networks.pool(_OwnNamespaces(), has_network=True)
        policy = await networks.policy(networks.parse(None))
        endpoint = await pool.make()
        try:
            endpoint.admit(policy)
            return await asyncio.to_thread(_read_in, endpoint.namespace)
        finally:
            endpoint.close()
            policy.close()
    except NetworkUnavailable as error:
        raise OSError(error.message) from error
    finally:
        await networks.aclose()


class _OwnNamespaces:
    """Owned by us: no other program enters them."""

    async def make(self, count: int) -> list[int]:
        return [network_namespaces.new() for _ in range(count)]


def _read_in(namespace: int | None) -> dict[str, list[list[Any]]]:
    """In a thread, which has no event loop. Raises: OSError."""
    assert namespace is not None
    with network_namespaces.entered(namespace):
        return network_reader.read()


def fuse_mount() -> None:
    """A connection of FUSE that another process could take over (Linux 6.9)."""
    mount = FuseMount.open(threads=2)
    try:
        if not mount.can_resend:
            raise OSError(NO_RESEND)
    finally:
        mount.close()


def thread_id_address() -> None:
    """Find where this thread's id is kept, as a Zygote does: each of its forks keeps that place (zygote/native/fork.c)."""
    _native.prepare(False)


PROBES: dict[str, Callable[[], None]] = {
    "attached_root": attached_root,
    "fuse_mount": fuse_mount,
    "host_files": host_files,
    "sandbox_namespaces": sandbox_namespaces,
    "thread_id_address": thread_id_address,
    "private_network": private_network,
}


def main(name: str) -> None:
    """Run one probe. Raises OSError: no."""
    mounts.enter_private_namespace()
    PROBES[name]()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.exit(str(error).partition("\n")[0])  # nft(8) quotes its input on further lines
