"""A confined process of ours: the engine or the compiler, started through the launcher and ended with its cgroup.

Owns the launcher, the cgroup and, until it is handed over, the scratch tmpfs. What the process can see is the `Ground`,
which the composition root lays: a mounted tree with the software that the engine needs, and nothing of the host.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sockd.kernel import mounts, oom_score, syscalls
from sockd.kernel.cgroups.tree import Cgroup
from sockd.kernel.seccomp import seccomp

HOME = "opt/sockd"
"""Where our own packages are in the tree."""
OURS = ("sockd", "sockd_initscripts", "sockd_storage_lib", "sockd_zygote")
THEIRS = ("wasmtime", "posix_ipc", "certifi", "grpc", "msgspec", "uvloop")
"""Whose directories the engine must be able to import from; their own dependencies are installed beside them."""
NEEDED = ("wasmtime", "posix_ipc", "certifi", "grpc")
"""What the extra `initscripts` installs, and the worker runs without."""
CANNOT_EXEC = 127
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # it never forks; the handlers that grpc would install cost a lock at each call
}


@dataclass(frozen=True, slots=True)
class Ground:
    """What confined processes stand on."""

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

    def __init__(self, launcher: asyncio.subprocess.Process, ground: Ground, cgroup: Cgroup) -> None:
        self.launcher = launcher
        self.cgroup = cgroup
        self._ground = ground

    @classmethod
    async def start(
        cls,
        ground: Ground,
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
        cgroup = ground.take_cgroup()
        try:
            cgroup.set_memory(memory_bytes)
            cgroup.set_pids(pids)
            with mounts.owned(scratch(uid, tmp_bytes)) as tmp:
                procs = cgroup.procs_fds
                confinement = {
                    "root": str(ground.root),
                    "scratch": tmp,
                    "procs": procs,
                    "network": network,
                    "uid": uid,
                    "limits": dict(limits or {}),
                    "keep": list(keep),
                    "filter": seccomp.engine_filter().hex(),
                    "command": [ground.python, "-P", "-s", "-S", *arguments],
                    "env": {**ENVIRONMENT, "PYTHONPATH": ":".join(ground.paths)},
                }
                launcher = await exec_launcher(
                    msgspec.json.encode(confinement).decode(), (tmp, *procs, *keep), stdin, stdout, stderr
                )
        except BaseException:
            ground.give_back_cgroup(cgroup)
            raise
        return cls(launcher, ground, cgroup)

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
            self._ground.give_back_cgroup(self.cgroup)


async def exec_launcher(
    confinement: str, fds: Sequence[int], stdin: int, stdout: int, stderr: int | None
) -> asyncio.subprocess.Process:
    """The launcher's process. A cancellation ends it: before it has joined its cgroup, nobody else could."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sockd_initscripts.client.launcher", confinement),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            start_new_session=True,
            cwd="/",
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
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


def missing() -> list[str]:
    """Which of the packages that only initscripts need are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def software() -> tuple[tuple[str, str], ...]:
    """(directory of the host, its place in the tree) of all that the engine imports beside the standard library; a
    place may be inside of what is there anyhow, and then needs no mount. Pure but for looking."""
    ours = Path(__file__).parents[2]
    places = [(str(ours / name), f"{HOME}/{name}") for name in OURS if (ours / name).is_dir()]
    for number, directory in enumerate(library_directories()):
        places.append((directory, f"{HOME}/lib-{number}"))
    return tuple(places)


def library_directories() -> list[str]:
    """The directories that hold THEIRS, each once: site-packages, mostly."""
    found: dict[str, None] = {}
    for name in THEIRS:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations:
            found[os.path.realpath(os.path.dirname(next(iter(spec.submodule_search_locations))))] = None
        elif spec.origin:
            found[os.path.realpath(os.path.dirname(spec.origin))] = None
    return list(found)


def import_paths(places: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """PYTHONPATH inside of the tree for what `software` gave."""
    libraries = [f"/{target}" for _, target in places if os.path.basename(target).startswith("lib-")]
    return (f"/{HOME}", *libraries)
