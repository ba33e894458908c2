"""favordynmods: make moving a task into a cgroup cheap after a pause, machine-wide.

Owns nothing; what it switches on stays on until the host reboots (on 6.18 the kernel cannot take it back).

The trap: by default the kernel makes forks cheap and moves dear. A move that finds no other move shortly before it waits
for an RCU grace period, 8-16 ms, on v1 and v2 alike; measured in a loop without pauses it looks like 10 us. The mount
option `favordynmods` (Linux 6.0) turns that around: 40 us always, and forks not measurably dearer.

The mount calls are done in a process of their own, `python -m sockd.linux.latency.favordynmods`, in a mount namespace that ends
with it: the daemon never forks, and the host's mount table is never touched.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from sockd.base.errors import SandboxFailed
from sockd.linux import mounts, syscalls
from sockd.linux.cgroups.hierarchies import CgroupMount, Hierarchies, parse_mounts
from sockd.linux.kernel_release import kernel_release
from sockd.linux.syscalls import MountFlag

SLOW_MOVE_S = 0.002
"""A move that takes longer has waited for a grace period; none takes a quarter of it otherwise."""

_OPTION = "favordynmods"
_NAMED = "sockd_dynmods"


def enabled_needed(hierarchies: Hierarchies) -> bool:
    """Whether `enable` may help: the kernel knows the option, and no mounted hierarchy shows it.

    A kernel that was built with it on (CONFIG_CGROUP_FAVOR_DYNMODS), or on which it was switched on by a hierarchy that is
    gone, does not show it; `enable` changes nothing there, and `cold_move_s` tells the truth."""
    if hierarchies.missing or kernel_release() < (6, 0):
        return False
    return not is_shown()


def is_shown() -> bool:
    """Whether a mounted hierarchy shows it; then moves are cheap on all."""
    return any(_OPTION in mount.options for mount in _mounts())


def enable() -> None:
    """Switch it on (blocks for about 50 ms: a Python process). Needs CAP_SYS_ADMIN. Doing it twice is harmless.

    Raises: SandboxFailed, with the kernel's words."""
    command = [sys.executable, "-P", "-m", "sockd.linux.latency.favordynmods"]
    root = str(Path(__file__).parents[3])
    child = subprocess.run(command, env={"PYTHONPATH": root}, stderr=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise SandboxFailed(f"favordynmods: {child.stderr.strip()}")


def cold_move_s(hierarchies: Hierarchies, *, moves: int = 5, gap_s: float = 0.1) -> float:
    """What a move costs on this host now: the median of some, each after a pause. Blocks for `moves * gap_s`."""
    base = hierarchies.bases[0]
    with ExitStack() as stack:
        fds = []
        for name in ("a", "b"):
            path = os.path.join(base, f"sockd-doctor-{os.getpid()}-{name}")
            os.mkdir(path)
            stack.callback(os.rmdir, path)
            fds.append(os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
            stack.callback(os.close, fds[-1])
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        stack.callback(child.wait)
        stack.callback(child.kill)
        stack.enter_context(child.stdin)  # type: ignore[arg-type]
        return statistics.median(_moves(child.pid, fds, moves, gap_s))


def _moves(pid: int, procs_fds: list[int], moves: int, gap_s: float) -> Iterator[float]:
    for number in range(moves):
        select.poll().poll(gap_s * 1000)  # The pause is what is measured.
        began = perf_counter()
        os.write(procs_fds[number % 2], str(pid).encode())
        yield perf_counter() - began


def _mounts() -> tuple[CgroupMount, ...]:
    return parse_mounts(Path("/proc/self/mountinfo").read_text())


def main() -> None:
    """In the process of its own: the switch itself. Raises OSError."""
    mounts.enter_private_namespace()
    unified = next((mount for mount in _mounts() if mount.version == 2), None)
    if unified is not None:
        # The v2 tree is never destroyed, so before 6.18 it alone keeps the setting. All its options are set anew by this,
        # so those it has are named again.
        options = ",".join([*(option for option in unified.options if option not in ("rw", "ro")), _OPTION])
        syscalls.mount("none", unified.path, None, MountFlag.REMOUNT, options)
    if unified is None or not any(_OPTION in mount.options for mount in _mounts()):
        # From within a cgroup namespace v2's options are ignored. A v1 hierarchy without controllers serves as well.
        syscalls.mount("cgroup", "/sys/fs/cgroup", "cgroup", MountFlag.NONE, f"none,name={_NAMED},{_OPTION}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
