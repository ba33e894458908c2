"""Drives one peer: bwrap, an OCI runtime, an engine, or "python" without isolation. A start runs `python3 -I -S -c pass`.

A standalone program with the commands of floor.py, plus `check`, which answers {"error": text} if the peer does not run here.
The container: pid, ipc, uts and mount namespaces, read-only /usr and interpreter, private /tmp; all but bwrap with memory and
pids limits. No network namespace, as in sockd's default, but for gVisor, which then has no network. Docker's daemon must be
running; its image is the empty root with its mount points, and is removed at the end. The driver has a private mount namespace
without /sys/fs/cgroup/unified, because crun refuses hybrid hosts ("hybrid mode not supported").

With FACILITIES, names of `FACILITIES` separated by commas, a container of crun or runc has these instead. `burst N` starts N at
once and answers {"ms": [...]}, when each had ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns as now

CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 1 << 18, 2
MERGED_LINKS = ("bin", "sbin", "lib", "lib64")
NAMESPACES = {"pid": "pid", "ipc": "ipc", "uts": "uts", "net": "network", "user": "user"}
FACILITIES = ("cgroup", *NAMESPACES, "seccomp")
"""What a container may do without. Its mounts it needs."""
USUAL = ("cgroup", "pid", "ipc", "uts")
OCI_RUNTIMES, ENGINES = ("crun", "runc", "runsc"), ("podman", "docker")
MEMORY_BYTES, PROCESSES = 128 << 20, 100
FIRST_UID, UIDS = 100_000, 65_536
GUEST = [os.path.realpath(sys.executable), "-I", "-S", "-c", "pass"]


def hide_unified_cgroups() -> None:
    """Give this process a mount namespace of its own and unmount the v2 part of a hybrid cgroup tree there."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None):
        raise OSError(ctypes.get_errno(), "private mount namespace")
    libc.umount2(b"/sys/fs/cgroup/unified", MNT_DETACH)  # not there on a pure host, which is fine


def shared_directories() -> list[str]:
    """Host directories that the container sees read-only."""
    prefix = os.path.realpath(sys.base_prefix)
    return ["/usr"] if prefix.startswith("/usr") else ["/usr", prefix]


def links() -> dict[str, str]:
    """The root's symbolic links of a host with merged /usr: name -> target."""
    return {name: os.readlink(f"/{name}") for name in MERGED_LINKS if os.path.islink(f"/{name}")}


def bwrap_command() -> list[str]:
    shared = [part for path in shared_directories() for part in ("--ro-bind", path, path)]
    linked = [part for name, target in links().items() for part in ("--symlink", target, f"/{name}")]
    namespaces = ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    return ["bwrap", *shared, *linked, "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc", *namespaces, *GUEST]


def engine_command(name: str, directory: Path) -> list[str]:
    """A container of Podman or Docker with the same view and limits. Podman's own rlimits need CAP_SYS_RESOURCE."""
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"]
    limits += [f"--memory={MEMORY_BYTES}", f"--pids-limit={PROCESSES}"]
    shared = [f"--volume={path}:{path}:ro" for path in shared_directories()]
    options = ["run", "--rm", "--read-only", "--network=host", "--tmpfs=/tmp", *limits, *shared]
    if name == "docker":
        return [name, *options, image(), *GUEST]
    stores = [f"--root={directory}/store", f"--runroot={directory}/state", "--storage-driver=vfs"]
    return [name, "--cgroup-manager=cgroupfs", *stores, *options, "--rootfs", str(directory / "root"), *GUEST]


def image() -> str:
    """The name of this driver's image."""
    return f"sockd-bench-{os.getpid()}"


def make_root(directory: Path) -> None:
    """A container's root: mount points and links."""
    directory.chmod(0o755)  # a container in a user namespace looks for its root as another user
    root = directory / "root"
    for name in ("proc", "dev", "tmp", *(path[1:] for path in shared_directories())):
        (root / name).mkdir(parents=True)
    for name, target in links().items():
        (root / name).symlink_to(target)


def write_bundle(directory: Path, facilities: tuple[str, ...]) -> None:
    """An OCI bundle (runtime-spec 1.0) with the same view as bwrap's."""
    mounts = [
        {"destination": path, "source": path, "type": "bind", "options": ["bind", "ro"]}
        for path in shared_directories()
    ]
    mounts += [{"destination": "/proc", "source": "proc", "type": "proc"}]
    mounts += [{"destination": path, "source": "tmpfs", "type": "tmpfs"} for path in ("/dev", "/tmp")]
    specification = {
        "ociVersion": "1.0.2",
        "process": {
            "args": GUEST,
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/usr/bin"],
            "noNewPrivileges": True,
        },
        "root": {"path": "root", "readonly": True},
        "mounts": mounts,
        "linux": linux(facilities),
    }
    (directory / "config.json").write_text(json.dumps(specification))


def linux(facilities: tuple[str, ...]) -> dict[str, object]:
    """The part of an OCI specification that says what isolates the container."""
    kinds = ["mount", *(kind for name, kind in NAMESPACES.items() if name in facilities)]
    table: dict[str, object] = {"namespaces": [{"type": kind} for kind in kinds]}
    if "cgroup" in facilities:
        table["resources"] = {"memory": {"limit": MEMORY_BYTES}, "pids": {"limit": PROCESSES}}
    if "user" in facilities:
        mapping = [{"containerID": 0, "hostID": FIRST_UID, "size": UIDS}]
        table |= {"uidMappings": mapping, "gidMappings": mapping}
    if "seccomp" in facilities:
        refused = {"names": ["kexec_load"], "action": "SCMP_ACT_ERRNO"}
        table["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]}
    return table


class Peer:
    """Starts containers of one kind."""

    def __init__(self, name: str, directory: Path, facilities: tuple[str, ...] = USUAL) -> None:
        self._name, self._directory, self._count = name, directory, 0
        self._options = ["--cgroup-manager=disabled"] if name == "crun" and "cgroup" not in facilities else []
        if name == "runsc":
            self._options = ["--network=none"]
        if name in (*OCI_RUNTIMES, *ENGINES):
            make_root(directory)
        if name in OCI_RUNTIMES:
            write_bundle(directory, facilities)

    def command(self) -> list[str]:
        """The command line of the next container; runtimes want a name per container."""
        if self._name == "python":
            return GUEST
        if self._name == "bwrap":
            return bwrap_command()
        if self._name in ENGINES:
            return engine_command(self._name, self._directory)
        self._count += 1
        state = str(self._directory / "state")
        identifier = f"sockd-{os.getpid()}-{self._count}"
        return [self._name, *self._options, "--root", state, "run", "--bundle", str(self._directory), identifier]

    def check(self) -> dict[str, str]:
        """Whether one container starts; Docker gets its image first."""
        commands = [self.command()]
        if self._name == "docker":
            tar = ["tar", "-C", str(self._directory / "root"), "-cf", str(self._directory / "root.tar"), "."]
            commands[:0] = [tar, ["docker", "import", str(self._directory / "root.tar"), image()]]
        for command in commands:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                break
        return {"error": done.stderr.strip() or f"status {done.returncode}"} if done.returncode else {}

    def close(self) -> None:
        """Remove what Docker's daemon keeps."""
        if self._name == "docker":
            subprocess.run(["docker", "image", "rm", image()], capture_output=True, check=False)

    def spawn(self) -> int:
        command = self.command()
        no_commands = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]  # gVisor reads its standard input
        return os.posix_spawnp(command[0], command, os.environ, file_actions=no_commands)

    def start_ns(self) -> int:
        begun = now()
        _, status = os.waitpid(self.spawn(), 0)
        if status:
            raise RuntimeError(f"{self._name} exited with wait status {status}")
        return now() - begun

    def rate(self, concurrency: int, count: int) -> float:
        """Seconds for `count` containers, `concurrency` at once. The children of this process are all ours to wait for."""
        begun = now()
        running: set[int] = set()
        for spawned in range(count + concurrency):
            if spawned >= concurrency:
                running.discard(os.wait()[0])
            if spawned < count:
                running.add(self.spawn())
        return (now() - begun) / 1e9

    def burst(self, count: int) -> list[float]:
        """ms until each of them had ended; without those that failed."""
        begun = now()
        running = {self.spawn() for _ in range(count)}
        times = []
        while running:
            pid, status = os.wait()
            running.discard(pid)
            if not status:
                times.append((now() - begun) / 1e6)
        return times


def main(name: str, directory: str, facilities: str = ",".join(USUAL)) -> None:
    hide_unified_cgroups()
    peer = Peer(name, Path(directory), tuple(facilities.split(",")))
    for line in iter(sys.stdin.readline, ""):
        match line.split():
            case ["check"]:
                answer: dict[str, object] = dict(peer.check())
            case ["start"]:
                answer = {"whole": peer.start_ns()}
            case ["rate", concurrency, count]:
                answer = {"seconds": peer.rate(int(concurrency), int(count))}
            case ["burst", count]:
                answer = {"ms": peer.burst(int(count))}
        print(json.dumps(answer), flush=True)
    peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
