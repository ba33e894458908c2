"""A container as `docker run` makes it, by runc(8): Docker's capabilities, devices, mounts, masked and read-only paths.

Its files are the host's below an overlay, so that what is installed here is in it. Of the host only cgroups are changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sockd.linux import mounts, syscalls
from sockd.linux.syscalls import MountFlag
from tests.support.sockd_template import REPOSITORY

RUNC = shutil.which("runc")
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
"""Docker's defaults."""
MASKED = (
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"),
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
DEVICES = ((5, 1), (5, 0), (5, 2), (1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (136, None))
"""Character devices that a container may use; it may make nodes of all."""
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL_S = 60.0


class Container:
    """One that runs a worker. Made by `running`."""

    def __init__(self, directory: Path, output: IO[str]) -> None:
        """Args: output: what its processes print."""
        self.directory = directory
        self.name = f"sockd-test-{uuid.uuid4().hex[:8]}"
        self.lines: list[str] = []
        """What was read of its output."""
        self.has_ended = False
        self._output = output

    def runc(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run runc. Raises: CalledProcessError, with its output on stderr."""
        command = [str(RUNC), "--root", str(self.directory / "runc"), *words]
        return subprocess.run(command, text=True, timeout=SHELL_S, **options)

    def wait_line(self, text: str) -> None:
        """Read its output until a line has a text. Raises: AssertionError: it has ended without."""
        for line in self._output:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(self.lines))

    def terminate(self) -> None:
        """Send SIGTERM, and read its output to the end: none of its processes is left then."""
        self.has_ended = True
        self.runc("kill", self.name, "TERM", check=True)
        self.lines += self._output

    def sockd(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of sockd in the container."""
        inside = ("exec", "--cwd", str(REPOSITORY), self.name, sys.executable, "-m", "sockd")
        return self.runc(*inside, *words, capture_output=True)


@contextmanager
def running(
    directory: Path, command: Sequence[str], *, capabilities: Sequence[str] = (), is_open: bool = False
) -> Iterator[Container]:
    """Have a command run in a container for a block; then it has ended in order, or the block fails.

    Args:
        directory: on a disk, for the container's files; DIRECTORY/state is its /var/lib/sockd.
        capabilities: those of --cap-add.
        is_open: as with --security-opt systempaths=unconfined --sysctl net.ipv4.ip_forward=1."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as output, os.fdopen(writing, "w") as theirs:
        container = Container(directory, output)
        with _made(container, command, capabilities, theirs, is_open=is_open):
            theirs.close()
            yield container
            if not container.has_ended:
                container.terminate()


@contextmanager
def _made(
    container: Container, command: Sequence[str], capabilities: Sequence[str], output: IO[str], *, is_open: bool
) -> Iterator[None]:
    directory = container.directory
    for name in ("changes", "root", "state", "bundle"):
        (directory / name).mkdir()
    mounts.mount_tmpfs(str(directory / "changes"), size_bytes=64 << 20)
    try:
        root = directory / "root"
        _mount_overlay(directory / "changes", root)
        spec = _spec(container, command, capabilities, is_open=is_open)
        (directory / "bundle" / "config.json").write_text(json.dumps(spec))
        start = ("run", "--detach", "--bundle", str(directory / "bundle"), container.name)
        container.runc(*start, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
        try:
            yield
        finally:
            container.runc("delete", "--force", container.name, check=True)
    finally:
        for name in ("root", "changes"):
            mounts.umount_tree(str(directory / name))


def _mount_overlay(changes: Path, root: Path) -> None:
    for name in ("upper", "work"):
        (changes / name).mkdir()
    options = f"lowerdir=/,upperdir={changes}/upper,workdir={changes}/work"
    syscalls.mount("overlay", str(root), "overlay", MountFlag(0), options)


def _spec(
    container: Container, command: Sequence[str], capabilities: Sequence[str], *, is_open: bool
) -> dict[str, Any]:
    """The document of the OCI's runtime specification that Docker makes."""
    held = [f"CAP_{name}" for name in (*CAPABILITIES, *capabilities)]
    return {
        "ociVersion": "1.0.2",
        "hostname": "worker",
        "root": {"path": str(container.directory / "root")},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "cwd": str(REPOSITORY),
            "env": [PATH, "HOME=/root"],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), held),
        },
        "mounts": [
            _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
            _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
            _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=67108864"),
            _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
            _mount("/sys/fs/cgroup", "bind", "rbind", "rprivate", source="/sys/fs/cgroup"),
            _mount("/var/lib/sockd", "bind", "rbind", "rprivate", source=str(container.directory / "state")),
        ],
        "linux": {
            "cgroupsPath": f"/{container.name}",
            "namespaces": [{"type": kind} for kind in ("mount", "network", "uts", "pid", "ipc")],
            "sysctl": {"net.ipv4.ip_forward": "1"} if is_open else {},
            "maskedPaths": [] if is_open else list(MASKED),
            "readonlyPaths": [] if is_open else list(READ_ONLY),
            "resources": {"devices": _devices()},
        },
    }


def _mount(target: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": list(options)}


def _devices() -> list[dict[str, Any]]:
    nodes = [{"allow": True, "type": kind, "access": "m"} for kind in ("c", "b")]
    usable = [{"allow": True, "type": "c", "access": "rwm", "major": major} for major, _ in DEVICES]
    for entry, (_, minor) in zip(usable, DEVICES, strict=True):
        if minor is not None:
            entry["minor"] = minor
    return [{"allow": False, "access": "rwm"}, *nodes, *usable]
