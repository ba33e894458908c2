"""Runs one operation of the kernel repeatedly in several processes, and measures its phases.

A standalone program (`python -I -S isolation_driver.py DIRECTORY`), importing nothing of ours. It reads one JSON list a
line and answers one JSON line:

    ["run", KIND, TASKS, SECONDS] -> {"rate": operations/s, PHASE: [us, ...], ...}   KIND is a name of KINDS
    ["idle", COUNT]               -> {"idle": COUNT}          so many mount namespaces without processes exist

Needs root. Owns: a private mount namespace, idle mount namespaces, cgroups named sockd-isolation-<pid>; all are gone when stdin
closes.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import struct
import sys
import tempfile
from array import array
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns as now

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 1 << 18, 2
OPEN_TREE, OPEN_TREE_CLONE = 428, 1
KEPT = 2000
"""Most durations of each phase that a process reports."""

Operation = Callable[[], list[int]]
"""Runs once; returns the times in ns before, between and after its phases."""


def check(result: int, what: str) -> None:
    """Raises OSError, naming the call, if it returned -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    texts = [text.encode() if text is not None else None for text in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), data.encode() if data else None), f"mount {target}")


def private_mounts() -> None:
    """Enter a new mount namespace, whose mounts are not propagated to the host's. Raises OSError."""
    check(libc.unshare(NEWNS), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def mounting(directory: str, mount_it: Callable[[str], None]) -> Operation:
    """Mount below the directory, then unmount."""
    target = f"{directory}/target"
    os.makedirs(target)

    def operation() -> list[int]:
        times = [now()]
        mount_it(target)
        times.append(now())
        check(libc.umount2(target.encode(), 0), "umount2")
        return [*times, now()]

    return operation


def bind(directory: str) -> Operation:
    """A bind mount. Its source is a mount without children: the duration grows with the mounts below the source."""
    source = f"{directory}/source"
    os.makedirs(source)
    mount("tmpfs", source, "tmpfs")
    return mounting(directory, lambda target: mount(source, target, None, MS_BIND))


def overlay(directory: str) -> Operation:
    """An overlay file system of one layer and a writable one."""
    mount("tmpfs", directory, "tmpfs")
    for name in ("lower", "upper", "work"):
        os.makedirs(f"{directory}/{name}")
    layers = ",".join(
        f"{key}={directory}/{name}" for key, name in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work"))
    )
    return mounting(directory, lambda target: mount("overlay", target, "overlay", 0, layers))


def detached(directory: str) -> Operation:
    """A detached copy of a mount (open_tree(2)), as a sandbox's root is."""
    mount("tmpfs", directory, "tmpfs")

    def operation() -> list[int]:
        times = [now()]
        tree = libc.syscall(OPEN_TREE, -100, directory.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC)
        check(tree, "open_tree")
        times.append(now())
        os.close(tree)
        return [*times, now()]

    return operation


def child(flags: int) -> Operation:
    """A process that enters new namespaces and exits; "clean up" ends when it has been reaped."""
    shared = mmap.mmap(-1, 16)

    def operation() -> list[int]:
        pid = os.fork()
        if pid == 0:
            begun = now()
            failed = flags and libc.unshare(flags)
            shared[:] = struct.pack("2q", begun, now())
            os._exit(1 if failed else 0)
        if os.waitpid(pid, 0)[1]:
            raise OSError(f"unshare {flags:#x} failed")
        return [*struct.unpack("2q", shared[:]), now()]

    return operation


def hierarchies() -> list[str]:
    """Mount points of the cgroup hierarchies that limit memory, processor or pids, and of the unified one (proc(5))."""
    points = []
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind == "cgroup2" or (kind == "cgroup" and {"memory", "cpu", "pids"} & set(options.split(","))):
                points.append(before.split()[4])
    return points


def made_for(name: str) -> list[str]:
    """Make a cgroup of that name in each hierarchy. Raises OSError."""
    directories = [f"{base}/{name}" for base in hierarchies()]
    for directory in directories:
        os.mkdir(directory)
    return directories


def joined(directories: list[str]) -> None:
    """Start a process that joins the cgroups and exits, and wait for it."""
    pid = os.fork()
    if pid == 0:
        for directory in directories:
            with open(f"{directory}/cgroup.procs", "wb", buffering=0) as procs:
                procs.write(b"0")
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise OSError("a cgroup cannot be joined")


def new_cgroup(directory: str) -> Operation:
    """A new cgroup for each process."""
    name = f"sockd-isolation-{os.getpid()}"

    def operation() -> list[int]:
        times = [now()]
        directories = made_for(name)
        times.append(now())
        joined(directories)
        times.append(now())
        for made in directories:
            os.rmdir(made)
        return [*times, now()]

    return operation


def used_cgroup(directory: str) -> Operation:
    """One cgroup for all processes, one after the other. The driver removes it."""
    directories = made_for(f"sockd-isolation-{os.getpid()}")

    def operation() -> list[int]:
        begun = now()
        joined(directories)
        return [begun, now()]

    return operation


CONTAINER = NEWNS | NEWIPC | NEWUTS | NEWPID
KINDS: dict[str, tuple[Callable[[str], Operation], tuple[str, ...]]] = {
    "bind": (bind, ("create", "clean up")),
    "overlay": (overlay, ("create", "clean up")),
    "detached tree": (detached, ("create", "clean up")),
    "process": (lambda _: child(0), ("create", "clean up")),
    "mount namespace": (lambda _: child(NEWNS), ("create", "clean up")),
    "ipc namespace": (lambda _: child(NEWIPC), ("create", "clean up")),
    "network namespace": (lambda _: child(NEWNET), ("create", "clean up")),
    "container": (lambda _: child(CONTAINER), ("create", "clean up")),
    "container with network": (lambda _: child(CONTAINER | NEWNET), ("create", "clean up")),
    "cgroup made": (new_cgroup, ("create", "use", "clean up")),
    "cgroup used again": (used_cgroup, ("use",)),
}


class Driver:
    """Runs operations in processes, and owns the idle mount namespaces."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._idle: list[int] = []
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def idle(self, count: int) -> dict[str, object]:
        """Make or close mount namespaces until `count` exist. Raises OSError."""
        home = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        while len(self._idle) < count:
            check(libc.unshare(NEWNS), "unshare")
            self._idle.append(os.open("/proc/self/ns/mnt", os.O_RDONLY))
        check(libc.setns(home, NEWNS), "setns")
        os.close(home)
        while len(self._idle) > count:
            os.close(self._idle.pop())
        return {"idle": len(self._idle)}

    def run(self, kind: str, tasks: int, seconds: float) -> dict[str, object]:
        """Run an operation in `tasks` processes at once. Raises OSError: one of them failed."""
        phases = KINDS[kind][1]
        pipes = [self._task(kind, number, seconds) for number in range(tasks)]
        counts, samples = [], [array("q") for _ in phases]
        for pid, read_end in pipes:
            with open(read_end, "rb") as pipe:
                data = array("q", pipe.read())
            if os.waitpid(pid, 0)[1] or not data:
                raise OSError(f"{kind}: a task failed")
            counts.append(data[0] / (data[1] / 1e9))
            for place, phase in enumerate(samples):
                phase.extend(data[2 + place :: len(phases)])
        return {
            "rate": sum(counts),
            **{name: [ns / 1e3 for ns in phase] for name, phase in zip(phases, samples, strict=True)},
        }

    def _task(self, kind: str, number: int, seconds: float) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write_end)
            return pid, read_end
        status = 1
        try:
            with open(write_end, "wb") as pipe:
                pipe.write(self._measured(kind, number, seconds))
            status = 0
        except OSError as error:
            print(f"{kind}: {error}", file=sys.stderr)
        finally:
            os._exit(status)

    def _measured(self, kind: str, number: int, seconds: float) -> bytes:
        """The count of operations, the ns they took, and the durations of their phases."""
        private_mounts()
        directory = tempfile.mkdtemp(dir=self._directory)  # process ids come round
        operation = KINDS[kind][0](directory)
        operation()
        begun, count, durations = now(), 0, array("q")
        while now() - begun < seconds * 1e9:
            times = operation()
            count += 1
            if count <= KEPT:
                durations.extend(after - before for before, after in pairwise(times))
        return (array("q", (count, now() - begun)) + durations).tobytes()


def remove_cgroups() -> None:
    """Remove the cgroups of tasks that have ended: those in use all the time, and those of tasks that were killed."""
    for base in hierarchies():
        for entry in os.scandir(base):
            name, _, pid = entry.name.rpartition("-")
            if name == "sockd-isolation" and not os.path.exists(f"/proc/{pid}"):
                os.rmdir(entry.path)


def serve(directory: str) -> None:
    private_mounts()
    mount("tmpfs", directory, "tmpfs")
    driver = Driver(directory)
    for line in iter(sys.stdin.readline, ""):
        command, *arguments = json.loads(line)
        try:
            answer = driver.run(*arguments) if command == "run" else driver.idle(*arguments)
        finally:
            remove_cgroups()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
