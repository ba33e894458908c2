"""A confined process of ours, such as the initscript engine, started through the launcher and ended with its cgroup.

Owns the launcher, the cgroup and, until it is handed over, the scratch tmpfs. What the process can see is the `Jail`, which its
owner makes (`sockd.isolation.roots.jail`): a mounted tree with the software that the process needs, and nothing of the host.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from sockd.linux import mounts, syscalls
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.processes import oom_score
from sockd.linux.processes.own_module import start_module
from sockd.linux.seccomp import seccomp

CANNOT_EXEC = 127
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # it never forks; the handlers that grpc would install cost a lock at each call
}


@dataclass(frozen=True, slots=True)
class Jail:
    """What confined processes run in."""

    root: Path
    """The mounted tree that they pivot_root onto."""
    python: str
    """The interpreter, as a path in the tree."""
    paths: tuple[str, ...]
    """Where it imports from, as paths in the tree."""
    take_cgroup: Callable[[], Cgroup]
    give_back_cgroup: Callable[[Cgroup], None]


class ConfinedProcess:
    """One process. `close` kills it and gives everything back."""

    def __init__(self, launcher: asyncio.subprocess.Process, jail: Jail, cgroup: Cgroup) -> None:
        self.launcher = launcher
        self.cgroup = cgroup
        self._jail = jail

    @classmethod
    async def start(
        cls,
        jail: Jail,
        *arguments: str,
        uid: int,
        memory_bytes: int,
        tmp_bytes: int,
        pids: int,
        network: Literal["host", "none"],
        keep: Sequence[int] = (),
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.DEVNULL,
        stderr: int | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> ConfinedProcess:
        """Run the interpreter with these arguments; it may not be confined yet when this returns.

        Args:
            memory_bytes: of its cgroup; tmp_bytes: of the tmpfs at /tmp, which is its /dev/shm, too.
            pids: most threads; keep: descriptors that it gets, under their own numbers.
            stderr: None is our own; limits: names and values of resource limits.
        Raises: OSError."""
        cgroup = jail.take_cgroup()
        try:
            cgroup.limits.set_memory(memory_bytes)
            cgroup.limits.set_pids(pids)
            with mounts.owned(scratch(uid, tmp_bytes)) as tmp:
                procs = cgroup.procs_fds
                confinement = {
                    "daemon": os.getpid(),
                    "root": str(jail.root),
                    "scratch": tmp,
                    "procs": procs,
                    "network": network,
                    "uid": uid,
                    "limits": dict(limits or {}),
                    "keep": list(keep),
                    "filter": seccomp.engine_filter().hex(),
                    "command": [jail.python, "-P", "-s", "-S", *arguments],
                    "env": {**ENVIRONMENT, "PYTHONPATH": ":".join(jail.paths)},
                }
                launcher = await exec_launcher(
                    msgspec.json.encode(confinement).decode(), (tmp, *procs, *keep), stdin, stdout, stderr
                )
        except BaseException:
            jail.give_back_cgroup(cgroup)
            raise
        return cls(launcher, jail, cgroup)

    @classmethod
    async def start_connected(
        cls, jail: Jail, module: str, kind: int = socket.SOCK_STREAM, **confinement: Any
    ) -> tuple[ConfinedProcess, socket.socket]:
        """Run a module whose only argument is its end of a socket pair. Returns: it, and our end, which does not block.

        Args: kind: of the sockets; confinement: as of `start`. Raises: OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                ours.setblocking(False)
                fd = theirs.fileno()
                return await cls.start(jail, "-m", module, str(fd), keep=(fd,), **confinement), ours
        except BaseException:
            ours.close()
            raise

    async def wait(self) -> str:
        """Wait until it has ended; how it did, in words."""
        status = await self.launcher.wait()
        if self.cgroup.oom_kills() > 0:
            return "out of memory"
        return words_of(status)

    async def close(self) -> None:
        """End it, if it has not, and give the cgroup back. Once."""
        try:
            if self.launcher.returncode is None:
                self.launcher.kill()  # the confined one follows by PR_SET_PDEATHSIG
                await self.launcher.wait()
        finally:
            self._jail.give_back_cgroup(self.cgroup)


async def exec_launcher(
    confinement: str, fds: Sequence[int], stdin: int, stdout: int, stderr: int | None
) -> asyncio.subprocess.Process:
    """The launcher's process. A cancellation ends it: before it has joined its cgroup, nothing else could."""
    starting = asyncio.ensure_future(
        start_module(
            *("sockd.linux.confined.launcher", confinement), keep=fds, stdin=stdin, stdout=stdout, stderr=stderr
        )
    )
    try:
        launcher = await asyncio.shield(starting)
        oom_score.expose(launcher.pid)
        return launcher
    except asyncio.CancelledError:
        launcher = await starting
        launcher.kill()
        await launcher.wait()
        raise


def scratch(uid: int, size_bytes: int) -> int:
    """A tmpfs that is one uid's alone, as a detached mount; with huge pages where the kernel has them for it: what is
    received into a large fresh file then costs a fault for each 2 MB instead of each 4 KB. Raises: OSError."""
    options: dict[str, str | int] = {"size": str(size_bytes), "mode": "0700", "uid": str(uid), "gid": str(uid)}
    try:
        return syscalls.new_filesystem("tmpfs", {**options, "huge": "within_size"}, mounts.PRIVATE_TMP)
    except OSError:
        return syscalls.new_filesystem("tmpfs", options, mounts.PRIVATE_TMP)


def words_of(status: int) -> str:
    """The launcher's exit status, for people."""
    if status == CANNOT_EXEC:
        return "could not be confined"
    code = -status if status < 0 else status - 128
    if code > 0:
        return f"killed by signal {code} ({(signal.strsignal(code) or 'unknown').lower()})"
    return f"exit status {status}"
