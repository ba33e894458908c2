"""What the kernel says of a daemon: its cgroups, who is in them, what is frozen, what is mounted. Read-only."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from sockd.linux.cgroups.tree import Hierarchies


def wait_readable(fd: int, deadline_s: float) -> bool:
    """True when the fd is readable before the deadline (a pidfd: when the process has exited)."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(deadline_s * 1000))


def waited_for_cpu_s(pids: Iterable[int]) -> float:
    """Seconds that the threads of these processes could have run but others had the processors."""
    waited_ns = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                waited_ns += int(file.read_text().split()[1])
    return waited_ns / 1e9


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of these processes and of their children that have ended, in seconds."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def cgroup_directories(name: str) -> list[Path]:
    """The directories of this name in every hierarchy that are there."""
    return [path for base in Hierarchies.detect().bases if (path := Path(base, name)).is_dir()]


def cgroup_pids(name: str) -> set[int]:
    """Every process in these cgroups, as the host numbers it."""
    found: set[int] = set()
    for top in cgroup_directories(name):
        for directory, _, _ in os.walk(top):
            try:
                found.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
            except (FileNotFoundError, OSError):
                continue  # removed meanwhile
    return found


def unified(path: str) -> Path:
    """The v2 directory of a cgroup as `0::` of /proc/<pid>/cgroup names it."""
    base = Hierarchies.detect().unified
    assert base is not None
    return Path(base, path.strip("/"))


def wait_event(directory: Path, key: str, value: int, deadline_s: float) -> None:
    """Wait until cgroup.events says `key value` (cgroup v2: a change is POLLPRI). Raises: AssertionError."""
    ends = time.monotonic() + deadline_s
    with open(directory / "cgroup.events") as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while f"{key} {value}\n" not in _reread(events):
            assert poller.poll(max(0.0, ends - time.monotonic()) * 1000), f"{directory}: {key} is never {value}"


def _reread(events: object) -> str:
    events.seek(0)  # type: ignore[attr-defined]
    return str(events.read())  # type: ignore[attr-defined]


def frozen(directory: Path) -> bool:
    """True when every process of a v2 cgroup is frozen."""
    return "frozen 1" in (directory / "cgroup.events").read_text()


def host_pid(directory: Path) -> int:
    """The one process of a sandbox's cgroup."""
    (pid,) = map(int, (directory / "cgroup.procs").read_text().split())
    return pid


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, in clock ticks (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def rss_kb(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def open_fds(pid: int) -> list[str]:
    """What a process's descriptors point to."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return found


def mounts_under(path: Path) -> list[str]:
    """Mounts that our own mount namespace has at or below a path."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4] == str(path) or line.split()[4].startswith(f"{path}/")]


def command_lines(word: str) -> list[str]:
    """The command lines of all processes that hold a word."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if word in line:
                found.append(f"{entry} {line}")
    return found
