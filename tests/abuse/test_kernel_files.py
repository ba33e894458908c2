"""Group A: devices, mounts, /proc and cgroup files: what the kernel shows as files, and lets nobody in a sandbox use."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from tests.abuse.attack import NOBODYS, attack, in_zygote
from tests.abuse.prelude import (
    AT_FDCWD,
    outcome,
    read,
    readable,
    refusal,
    visible_pids,
)
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker


def make_devices(event: Any) -> Any:
    """Device nodes of all kinds, by both calls; and opening the few there are in ways that they are not meant for."""
    base = os.environ.get("TMPDIR", "/tmp")
    tried = {}
    for kind, name in ((stat.S_IFCHR, "character"), (stat.S_IFBLK, "block")):
        for major, minor in ((1, 1), (1, 3), (8, 0), (254, 0), (10, 200)):
            device = os.makedev(major, minor)
            path = f"{base}/{name}-{major}-{minor}"
            tried[f"mknod {name} {major}:{minor}"] = refusal(133, path.encode(), kind | 0o666, device)
            tried[f"mknodat {name} {major}:{minor}"] = refusal(259, AT_FDCWD, path.encode(), kind | 0o666, device)
    return tried


@case("A10", "mknod and mknodat of character and block devices", expect="EPERM")
def test_no_device_can_be_made(worker: PrivateWorker, happened: Happened) -> None:
    for who, tried in (("handler", attack(worker, make_devices)), ("Zygote", in_zygote(worker, make_devices))):
        happened(f"{who}: {len(tried)} tries, {', '.join(sorted(set(tried.values())))}")
        assert set(tried.values()) == {"EPERM"}


def mount_things(event: Any) -> Any:
    """Every way to change a mount table."""
    base = os.environ.get("TMPDIR", "/tmp").encode()
    bind, rec, move, remount, private = 4096, 16384, 8192, 32, 1 << 18
    return {
        "mount tmpfs": refusal(165, b"none", base, b"tmpfs", 0, 0),
        "mount proc": refusal(165, b"proc", base, b"proc", 0, 0),
        "mount cgroup2": refusal(165, b"none", base, b"cgroup2", 0, 0),
        "mount bind": refusal(165, b"/", base, 0, bind | rec, 0),
        "mount move": refusal(165, b"/usr", base, 0, move, 0),
        "remount writable": refusal(165, 0, b"/", 0, remount | bind, 0),
        "make private": refusal(165, 0, b"/", 0, private | rec, 0),
        "umount": refusal(166, b"/tmp", 2),
        "umount root": refusal(166, b"/", 2),
        "pivot_root": refusal(155, base, base),
        "open_tree": refusal(428, AT_FDCWD, b"/", 1),
        "move_mount": refusal(429, AT_FDCWD, b"/usr", AT_FDCWD, base, 0),
        "fsopen": refusal(430, b"tmpfs", 0),
        "fsconfig": refusal(431, 3, 6, 0, 0, 0),
        "fsmount": refusal(432, 3, 0, 0),
        "fspick": refusal(433, AT_FDCWD, b"/", 0),
        "mount_setattr": refusal(442, AT_FDCWD, b"/", 0, b"\0" * 32, 32),
        "unshare mounts": refusal(272, 0x00020000),
        "setns": refusal(308, 0, 0x00020000),
        "statmount": refusal(457, 0, 0, 0, 0),
    }


@case("A11", "mount, umount, move_mount, fsopen, pivot_root, setns ...", expect="EPERM")
def test_nothing_can_be_mounted(worker: PrivateWorker, happened: Happened) -> None:
    for who, tried in (("handler", attack(worker, mount_things)), ("Zygote", in_zygote(worker, mount_things))):
        happened(f"{who}: {len(tried)} calls, {', '.join(sorted(set(tried.values())))}")
        assert set(tried.values()) == {"EPERM"}, tried


def read_proc(event: Any) -> Any:
    """What /proc gives away of other processes, and of the host."""
    others = [pid for pid in visible_pids() if pid != int(os.readlink("/proc/self"))]
    names = ("mem", "maps", "environ", "root", "cwd", "fd", "exe", "auxv", "stack", "syscall", "personality", "smaps")
    got = []
    for pid in {1, 2, 3, 4, 5, *others} - {int(os.readlink("/proc/self"))}:
        for name in names:
            path = f"/proc/{pid}/{name}"
            with contextlib.suppress(OSError):
                if name in ("root", "cwd"):
                    got.append(f"{path} -> {os.listdir(path + '/')[:3]}")
                elif name == "fd":
                    got.append(f"{path} -> {os.listdir(path)}")
                elif name == "exe":
                    got.append(f"{path} -> {os.readlink(path)}")
                elif read(path, 1):
                    got.append(path)
    host = readable(
        ["/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/proc/vmallocinfo"]
    )
    writable = []
    for path in (
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
    ):
        if outcome(os.open, path, os.O_WRONLY) == "ok":
            writable.append(path)
    root = sorted(os.listdir("/proc/self/root/"))
    return {"others": others, "got": got, "host": host, "writable": writable, "root": root}


@case(
    "A13",
    "/proc/1/root, /proc/<Zygote>/mem, maps, environ, fd ...",
    expect="only its own; ENOENT or EACCES for the rest",
)
def test_proc_shows_no_one_else(worker: PrivateWorker, happened: Happened) -> None:
    for name in ("sibling-1", "sibling-2"):
        worker.deploy(name, "def f(event): return 1")
        assert worker.call(name) == 1
    seen = attack(worker, read_proc)
    happened(
        f"handler sees {len(seen['others'])} others, reads {len(seen['got'] + seen['host'])} files of others or the host"
    )
    assert seen["others"] == [] and seen["got"] == [] and seen["host"] == [] and seen["writable"] == [], seen
    assert not NOBODYS & set(seen["root"])
    seen = in_zygote(worker, read_proc)
    happened(f"Zygote sees {len(seen['others'])} others, reads {len(seen['got'] + seen['host'])}")
    assert seen["got"] == [] and seen["host"] == [] and seen["writable"] == [], seen
    assert not NOBODYS & set(seen["root"])


@case("A14", "find /sys/fs/cgroup, mount a cgroup tree, write release_agent", expect="there is none: ENOENT, EPERM")
def test_there_are_no_cgroup_files(worker: PrivateWorker, happened: Happened) -> None:
    def look(event: Any) -> Any:
        tmp = os.environ.get("TMPDIR", "/tmp")
        files = ["/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", f"{tmp}/release_agent"]
        mounts = read("/proc/self/mountinfo", 65536).decode()
        tried = {f"write {path}": outcome(os.open, path, os.O_RDWR) for path in files}
        tried["mount cgroup"] = refusal(165, b"none", tmp.encode(), b"cgroup", 0, b"memory")
        tried["mount cgroup2"] = refusal(165, b"none", tmp.encode(), b"cgroup2", 0, 0)
        tried["unshare cgroup"] = refusal(272, 0x02000000)
        tried["list /sys"] = outcome(lambda: os.listdir("/sys/fs"))
        return tried, [line for line in mounts.splitlines() if "cgroup" in line]

    for who, (tried, mounts) in (("handler", attack(worker, look)), ("Zygote", in_zygote(worker, look))):
        happened(f"{who}: {', '.join(sorted(set(tried.values())))}; {len(mounts)} cgroup mounts")
        assert set(tried.values()) <= {"ENOENT", "EPERM"} and mounts == [], tried
