"""Breaks of what sandboxes may do, see, take and reach."""

from __future__ import annotations

import os
from typing import Any

from sockd.http import front, sandbox_front
from sockd.http.server.messages import body
from sockd.isolation.farm import uids, zygote
from sockd.isolation.networks import resolver
from sockd.isolation.sandbox import channel
from sockd.linux import allocator, mounts, procfs, syscalls
from sockd.linux.bpf import assembler, packet_guard
from sockd.linux.cgroups import cgroup_limits, tree
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.processes import task_shares
from sockd.linux.seccomp import seccomp
from sockd.linux.seccomp.compiler import compile_filter
from sockd.linux.syscall_table import NUMBERS
from sockd_zygote import protocol
from tests.support.breaks.breaking import breaks, patch_native, patch_zygote


@breaks("no-seccomp")
def no_seccomp() -> None:
    """Every call of a handler reaches the kernel."""
    everything = compile_filter(list(NUMBERS), checks={})
    seccomp.root_filter = seccomp.sandbox_filter = seccomp.zygote_filter = lambda *_: everything  # type: ignore[assignment]


@breaks("shared-stdin")
def shared_stdin() -> None:
    """A child keeps its Zygote's open file description of /dev/null."""
    patch_native("confine.c", r"^    must\((close\(0\)|open\(\"/dev/null\").*$", "")


@breaks("package-namespaces")
def package_namespaces() -> None:
    """A Zygote may clone a network namespace beside those of a fork."""
    forks = seccomp._ZYGOTE_FORKS
    seccomp._ZYGOTE_FORKS = (*forks, *(flags | syscalls.CLONE_NEWNET for flags in forks))  # type: ignore[assignment]


@breaks("no-port-guard")
def no_port_guard() -> None:
    """Sandboxes bind any port."""
    tree.CgroupTree.guard_ports = lambda self: None  # type: ignore[method-assign]


@breaks("no-packet-guard")
def no_packet_guard() -> None:
    """Packets of sandboxes go where their source routes lead."""
    packet_guard.refuse_packets = lambda *maps: assembler.leave(1)


@breaks("any-listener")
def any_listener() -> None:
    """A web server's requests go to any process that listens on its port."""
    patch_zygote(
        "handlers/programs/web_server.py", r"if found is not None and self\._listener\.find\(\) == found:", "if True:"
    )


@breaks("any-function")
def any_function() -> None:
    """Functions with a private network that may call one function may call all."""
    sandbox_front.SandboxFront.check_caller = front.Front.check_caller  # type: ignore[method-assign]


@breaks("no-socket-limit")
def no_socket_limit() -> None:
    """Sandboxes have as many sockets as they like."""
    tree.CgroupTree.count_sockets = lambda self, most=0: None  # type: ignore[method-assign]


@breaks("kept-memory")
def kept_memory() -> None:
    """Bodies lie in the heap among small blocks, which is as glibc manages it, and is never trimmed."""
    allocator.return_large_blocks = lambda: None
    body.IN_PIECES_BYTES = 1 << 40
    allocator.HeapTrim.is_due = lambda self: False  # type: ignore[method-assign]


@breaks("long-turns")
def long_turns() -> None:
    """All frames that have come are handled in one turn of the loop."""
    channel.FRAMES_PER_TURN = 1 << 30  # type: ignore[attr-defined]


@breaks("long-frames")
def long_frames() -> None:
    """A frame of any kind may have any length."""
    kinds = protocol.sandbox_limits(0)
    protocol.sandbox_limits = lambda max_answer_bytes: dict.fromkeys(kinds, 1 << 30)


@breaks("open-fds")
def open_fds() -> None:
    """A handler inherits what its Zygote holds: its root's directory, the cgroup's files, the control socket."""
    patch_native("confine.c", r"^    close_between\(moved.*$", "")


@breaks("shared-uid")
def shared_uid() -> None:
    """All children of a Zygote have one uid."""
    uids.UidBlock.take_uid = lambda self: self._zero + 1  # type: ignore[method-assign]
    uids.UidBlock.give_back_uid = lambda self, uid: None  # type: ignore[method-assign]


@breaks("capabilities")
def capabilities() -> None:
    """A handler keeps all capabilities over its own user namespace, and may gain more."""
    pattern = r"^    must\((drop_bounding_set|lock_securebits|set_capabilities)\(0?\).*$"
    patch_native("confine.c", pattern, "")


@breaks("writable-root")
def unsealed_root() -> None:
    """The base, and so each sandbox's root, is not sealed."""
    mounts.seal = mounts.replace_by_sealed = lambda target: None


@breaks("shared-changes")
def shared_changes() -> None:
    """The changes of all sandboxes to files of their images lie in one place."""
    place: list[int] = []
    new = mounts.new_overlay

    def overlay(lower: int | str, upper: int | str, work: int | str) -> int:
        if not place:
            place.extend(
                os.open(each, os.O_RDONLY) if isinstance(each, str) else os.dup(each) for each in (upper, work)
            )
        return new(lower, *place)

    mounts.new_overlay = overlay


@breaks("host-proc")
def host_proc() -> None:
    """Every sandbox has the daemon's /proc."""

    async def new(self: procfs.Procfs, pidfd: int, *, only_own: bool = False) -> int:
        return syscalls.open_tree(syscalls.AT_FDCWD, "/proc", recursive=False)

    procfs.ByNamespace.new = procfs.ByChild.new = new  # type: ignore[method-assign]


@breaks("shared-ipc")
def shared_ipc() -> None:
    """Sandboxes share the farm's System V objects and message queues."""
    patch_native("fork.c", r" \| CLONE_NEWIPC", "")
    seccomp._ZYGOTE_FORKS = tuple(flags & ~seccomp.CLONE_NEWIPC for flags in seccomp._ZYGOTE_FORKS)  # type: ignore[assignment]


@breaks("host-network")
def host_network() -> None:
    """`network = "none"` is ignored."""
    patch_native("network.c", r"setns\(\w+, CLONE_NEWNET\)", "0")


@breaks("cgroup-files")
def cgroup_files() -> None:
    """A Zygote with packages is given the files with which a process is put into a cgroup."""
    original = zygote.Zygote._make_child

    async def make_child(self: zygote.Zygote, *given: Any, **fields: Any) -> zygote.Child:
        is_root, self._is_root = self._is_root, True
        try:
            return await original(self, *given, **fields)
        finally:
            self._is_root = is_root

    zygote.Zygote._make_child = make_child  # type: ignore[method-assign]


@breaks("no-pids-limit")
def no_pids_limit() -> None:
    """A sandbox may have as many processes as the machine."""
    cgroup_limits.CgroupLimits.set_pids = lambda self, tasks: None  # type: ignore[method-assign]


@breaks("no-task-shares")
def no_task_shares() -> None:
    """The sandboxes of one function may have all processes and threads of the worker."""
    task_shares.TaskShare.take = lambda self, wanted: task_shares.TaskGrant(self, wanted)  # type: ignore[method-assign]


@breaks("no-memory-limit")
def no_memory_limit() -> None:
    """A sandbox may have all of the machine's memory."""
    cgroup_limits.CgroupLimits.set_memory = lambda self, limit_bytes: None  # type: ignore[method-assign]


@breaks("no-tmp-limit")
def no_tmp_limit() -> None:
    """/tmp has neither a size nor a number of files."""
    new = mounts.new_tmp
    mounts.new_tmp = lambda *, size_bytes, inodes: new(size_bytes=0, inodes=0)


@breaks("separate-queries", in_tests=True)
def separate_queries() -> None:
    """Each function that waits for a name has the nameserver asked."""
    code = f"""
import asyncio
from {resolver.MODULE} import ResolverProcess, main
ResolverProcess._ask_nameservers = lambda self, name, kind: self._nameservers.ask(name, kind)
asyncio.run(main())
"""
    start = ConfinedProcess.start

    async def start_broken(jail: Jail, *arguments: str, **given: Any) -> ConfinedProcess:
        if arguments[:2] == ("-m", resolver.MODULE):
            arguments = ("-c", code, *arguments[2:])
        return await start(jail, *arguments, **given)

    ConfinedProcess.start = start_broken  # type: ignore[method-assign]
