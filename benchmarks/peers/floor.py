"""The kernel's floor: what one confined Python sandbox costs when nothing is between it and the kernel.

A standalone program (`python -I -S floor.py`), importing nothing of ours: a minimal interpreter that makes sandboxes the
way sockd's Zygote does, but without daemon, HTTP, protocol or user code. It reads one command a line and answers one JSON line:

    start          -> {step: ns, ...}           one sandbox, from its root to its "ready" byte
    rate C N       -> {"seconds": s}            N sandboxes, C in flight, each killed and reaped when ready

Needs root. Owns: a private mount namespace, a pool of cgroups named sockd-floor-<pid>; both are gone when stdin closes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import sys
from time import perf_counter_ns as now

libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the GIL across the call: the child of clone3 must own it (SAFETY below).
libc_gil = ctypes.PyDLL(None, use_errno=True)
python = ctypes.pythonapi

CLONE3, OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT = (
    435,
    428,
    429,
    430,
    431,
    432,
)  # the same on every architecture
CLONE_NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000
CLONE_PIDFD, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x1000, 0x200000, 0x1000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_RECURSIVE, AT_FDCWD = 1, 0o2000000, 0x8000, -100
MOVE_MOUNT_F_EMPTY_PATH = 4
PR_GET_TID_ADDRESS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 40, 22, 38
POOL_SIZE = 24
FIRST_UID = 0x1F000000
STEPS = (
    "root",
    "clone",
    "join cgroups",
    "uid map",
    "chroot",
    "setresuid",
    "drop capabilities",
    "seccomp",
    "close fds",
    "ready",
)


def check(result: int, what: str) -> int:
    """The result of a libc call that returns -1 for failure. Raises OSError naming the call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes) -> int:
    """A raw system call. SAFETY: every argument is a C long or a NUL-terminated string that lives during the call."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    return check(libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")


class SandboxRoots:
    """A template of bind mounts in a private mount namespace, and detached clones of it with a /tmp of their own."""

    def __init__(self, path: str) -> None:
        check(libc.unshare(CLONE_NEWNS), "unshare")
        self._mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
        self.path = path.encode()
        self._mount(b"tmpfs", self.path, b"tmpfs", 0)
        for directory in ("tmp", "proc", "dev", "etc", "packages", "var", "var/task"):
            os.mkdir(f"{path}/{directory}")
        for device in ("null", "zero", "full", "random", "urandom"):
            os.close(os.open(f"{path}/dev/{device}", os.O_CREAT))
            self._mount(f"/dev/{device}".encode(), f"{path}/dev/{device}".encode(), None, MS_BIND)
        for source in dict.fromkeys(("/usr", sys.base_prefix)):
            os.makedirs(path + source, exist_ok=True)
            self._mount(source.encode(), (path + source).encode(), None, MS_BIND)
        self._mount(
            b"/var/empty" if os.path.isdir("/var/empty") else b"/usr/share", f"{path}/var/task".encode(), None, MS_BIND
        )
        self.fresh_tmp = True
        try:
            os.close(self.clone())
        except OSError:  # move_mount into a detached tree came with Linux 6.15
            self.fresh_tmp = False

    def clone(self) -> int:
        """A directory fd of a detached root; its mounts are gone with the fd and its last user."""
        root = syscall(OPEN_TREE, AT_FDCWD, self.path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE)
        if self.fresh_tmp:
            tmp = self._tmpfs()
            syscall(MOVE_MOUNT, tmp, b"", root, b"tmp", MOVE_MOUNT_F_EMPTY_PATH)
            os.close(tmp)
        return root

    def _tmpfs(self) -> int:
        context = syscall(FSOPEN, b"tmpfs", 1)
        for key, value in ((b"size", b"512m"), (b"nr_inodes", b"65536"), (b"mode", b"1777")):
            syscall(FSCONFIG, context, 1, key, value, 0)
        syscall(FSCONFIG, context, 6, 0, 0, 0)
        mount = syscall(FSMOUNT, context, 1, 0)
        os.close(context)
        return mount

    @staticmethod
    def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
        check(libc.mount(source, target, kind, ctypes.c_ulong(flags), None), f"mount {target.decode()}")


class Cgroups:
    """A pool of empty cgroups in every hierarchy that limits memory, processor or pids, and in the unified one."""

    def __init__(self) -> None:
        self._directories: list[str] = []
        self.free: list[list[int]] = []
        bases = [f"{mount}/sockd-floor-{os.getpid()}" for mount in hierarchies()]
        for base in bases:
            self._make(base)
        for number in range(POOL_SIZE):
            self.free.append([self._make(f"{base}/{number}") for base in bases])

    def _make(self, directory: str) -> int:
        os.mkdir(directory)
        self._directories.append(directory)
        return os.open(f"{directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def remove(self) -> None:
        """Remove every cgroup; they are empty because every sandbox has been reaped."""
        for directory in reversed(self._directories):
            os.rmdir(directory)


def hierarchies() -> list[str]:
    """Mount points of the cgroup hierarchies to join, from /proc/self/mountinfo (proc(5))."""
    points = []
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind == "cgroup2" or (kind == "cgroup" and {"memory", "cpu", "pids"} & set(options.split(","))):
                points.append(before.split()[4])
    return points


class Sandboxes:
    """Makes sandboxes, one clone3 each. Single-threaded."""

    def __init__(self, roots: SandboxRoots, cgroups: Cgroups) -> None:
        self._roots, self._cgroups = roots, cgroups
        self._uid = FIRST_UID
        self._tid_address = ctypes.c_uint64()
        check(libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(self._tid_address), 0, 0, 0), "prctl")
        self._pidfd = ctypes.c_int(-1)
        flags = NEWUSER | NEWPID | NEWIPC | NEWUTS | CLONE_PIDFD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
        self._clone_args = struct.pack(
            "8Q", flags, ctypes.addressof(self._pidfd), self._tid_address.value, 0, signal.SIGCHLD, 0, 0, 0
        )
        self._filter = seccomp_filter()

    def start(self) -> Started:
        """A sandbox on its way; its socket becomes readable when it is ready."""
        times = [now()]
        root = self._roots.clone()
        times.append(now())
        ours, theirs = socket.socketpair()
        cgroup = self._cgroups.free.pop()
        # SAFETY: the interpreter has one thread and no pthread_atfork user (no BLAS), so that skipping libc's fork
        # handlers leaves nothing locked; Python's own are called by hand; glibc's tid is kept right by CHILD_SETTID.
        python.PyOS_BeforeFork()
        pid = libc_gil.syscall(ctypes.c_long(CLONE3), self._clone_args, ctypes.c_long(len(self._clone_args)))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            try:
                self._become_sandbox(root, cgroup, theirs, times)
            finally:
                os._exit(1)
        python.PyOS_AfterFork_Parent()
        check(pid, "clone3")
        self._uid += 1
        for name in ("uid_map", "gid_map"):
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
            os.write(fd, b"1000 %d 1" % self._uid)
            os.close(fd)
        ours.send(b"m")
        theirs.close()
        os.close(root)
        return Started(pid, self._pidfd.value, ours, cgroup)

    def _become_sandbox(self, root: int, cgroup: list[int], channel: socket.socket, times: list[int]) -> None:
        times.append(now())
        for fd in cgroup:
            os.write(fd, b"0")
        times.append(now())
        channel.recv(1)
        times.append(now())
        os.fchdir(root)
        os.chroot(".")
        times.append(now())
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
        times.append(now())
        check(libc.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0)), "capset")
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        times.append(now())
        program = struct.pack("HxxxxxxP", len(self._filter) // 8, ctypes.cast(self._filter, ctypes.c_void_p).value)
        check(libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")
        times.append(now())
        channel_fd = os.dup2(channel.fileno(), 3)
        os.closerange(4, 1 << 30)  # close_range(2) since Python 3.10
        times.append(now())
        os.write(channel_fd, struct.pack("10q", *times))
        os.read(channel_fd, 1)

    def finish(self, started: Started) -> list[int]:
        """Wait for the sandbox to be ready, then end it and put its cgroup back. Its times in ns, one for each step."""
        data = started.channel.recv(80)
        times = [*struct.unpack("10q", data), now()]
        started.channel.close()
        os.waitpid(started.pid, 0)
        os.close(started.pidfd)
        self._cgroups.free.append(started.cgroup)
        return times

    def rate(self, concurrency: int, count: int) -> float:
        """Seconds to make and end `count` sandboxes with `concurrency` of them in flight."""
        poll = select.epoll()
        running: dict[int, Started] = {}
        begun = now()
        for started_count in range(count + concurrency):
            if started_count >= concurrency:
                fd = poll.poll(maxevents=1)[0][0]
                poll.unregister(fd)
                self.finish(running.pop(fd))
            if started_count < count:
                started = self.start()
                running[started.channel.fileno()] = started
                poll.register(started.channel.fileno(), select.EPOLLIN)
        poll.close()
        return (now() - begun) / 1e9


class Started:
    """A sandbox that was cloned: its process, its end of the channel, the cgroup lent to it."""

    def __init__(self, pid: int, pidfd: int, channel: socket.socket, cgroup: list[int]) -> None:
        self.pid, self.pidfd, self.channel, self.cgroup = pid, pidfd, channel, cgroup


def seccomp_filter() -> ctypes.Array[ctypes.c_char]:
    """A BPF program of 30 instructions that compares the call number 28 times and allows everything."""
    load = struct.pack("HBBI", 0x20, 0, 0, 0)
    never = b"".join(struct.pack("HBBI", 0x15, 0, 0, 1000 + i) for i in range(28))
    return ctypes.create_string_buffer(load + never + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000), 240)


def answer(sandboxes: Sandboxes, command: list[str]) -> str:
    if command[0] == "rate":
        return f'{{"seconds": {sandboxes.rate(int(command[1]), int(command[2])):f}}}'
    times = sandboxes.finish(sandboxes.start())
    # Between "root" and "clone" lies the socketpair too; it is counted to the clone.
    steps = [f'"{name}": {after - before}' for name, before, after in zip(STEPS, times, times[1:], strict=False)]
    return "{" + ", ".join(steps) + "}"


def serve(template: str) -> None:
    sandboxes_cgroups = Cgroups()
    try:
        sandboxes = Sandboxes(SandboxRoots(template), sandboxes_cgroups)
        for line in iter(sys.stdin.readline, ""):
            print(answer(sandboxes, line.split()), flush=True)
    finally:
        sandboxes_cgroups.remove()


if __name__ == "__main__":
    serve(sys.argv[1])
