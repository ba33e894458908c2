"""The farm: one mount namespace and one pid namespace for all sandboxes, without host files.

Owns the launcher process and the sockets to it and to farm init. Killing farm init kills every
process in the farm, and farm init dies with the daemon (PR_SET_PDEATHSIG through the launcher), so a SIGKILL of the daemon
leaves nothing. Farm init execs root Zygotes when it is asked to; all else in the farm is forked. There is one farm for the
worker's own interpreter, and one for each other interpreter that functions use (`foreign_farms`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sockd.base.errors import SandboxFailed
from sockd.isolation.farm.control import ControlWire, close_all, read_status, take_pidfd
from sockd.isolation.farm.farm_init import RELEASE
from sockd.isolation.farm.uids import SANDBOX_UID, UidBlock
from sockd.isolation.roots import base as bases
from sockd.isolation.roots import environment
from sockd.isolation.roots.interpreter import ROOT_OPTIONS, Interpreter
from sockd.linux import mounts, syscalls
from sockd.linux.cgroups.leaf import Cgroup
from sockd.linux.processes import oom_score, pidfds
from sockd.linux.processes.own_module import start_module
from sockd.linux.seccomp import seccomp
from sockd.linux.ways import PARENT, Ways

START_DEADLINE_S = 10.0
TMP_BYTES = "16m"


class ForeignWire(NamedTuple):
    """Descriptors for the exec of a foreign interpreter, the caller's."""

    control: int
    """The Zygote's end of its control socket."""
    words: int
    """The end of a pipe that takes what it says before it serves."""


class Farm:
    """The running farm. `close` ends every process in it."""

    def __init__(
        self,
        launcher: asyncio.subprocess.Process,
        wire: ControlWire,
        releases: socket.socket,
        cgroup: Cgroup,
        ways: Ways,
    ) -> None:
        self._launcher = launcher
        self._wire = wire
        self._releases = releases
        self._cgroup = cgroup
        self.reaps = ways.exits.name == PARENT
        """Whether its processes wait for their children and tell how they ended (`exit_status`)."""

    @classmethod
    async def start(cls, base: bases.Tree, cgroup: Cgroup, on_end: Callable[[], None], ways: Ways) -> Farm:
        """Exec the launcher and wait until farm init serves.

        Args:
            base: the tree to pivot_root onto; cgroup: for the launcher and farm init, owned by the farm from now on.
            on_end: called once if the farm ends by itself.
        Raises: SandboxFailed with the launcher's own words."""
        # Of farm init and the root Zygotes: those with packages import in trees of their own (`Zygote.import_modules`).
        options: dict[str, str | int] = {"size": TMP_BYTES, "mode": "0755"}
        scratch = syscalls.new_filesystem("tmpfs", options, mounts.PRIVATE_TMP)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        releases, their_releases = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        releases.setblocking(False)
        passed = (theirs.fileno(), their_releases.fileno(), scratch, *cgroup.procs_fds)
        try:
            launcher = await start_module(
                "sockd.isolation.farm.farm_init", str(base.path), *map(str, passed), keep=passed
            )
        except BaseException:
            ours.close()
            releases.close()
            raise
        finally:
            os.close(scratch)
            theirs.close()
            their_releases.close()
        farm = cls(launcher, ControlWire(ours, on_end), releases, cgroup, ways)
        try:
            await farm._wire.request("ready", (), deadline_s=START_DEADLINE_S, reaps=farm.reaps)
        except SandboxFailed as error:
            await farm.close()
            raise SandboxFailed("the farm did not start; run `sockd doctor`") from error
        return farm

    async def exec_zygote(self, control: socket.socket, procs_fds: Sequence[int]) -> None:
        """Exec a root Zygote that serves on `control` in the given cgroups. The caller keeps its fds."""
        programs = (seccomp.root_filter(), seccomp.sandbox_filter(SANDBOX_UID), seccomp.zygote_filter())
        filters = [program.hex() for program in programs]
        command = [bases.interpreter(), *ROOT_OPTIONS, f"/{bases.ZYGOTE}"]
        variables = environment.OF_EXEC | environment.OF_LOADING
        fds = (control.fileno(), *procs_fds)
        answer = await self._wire.request(
            *("exec", fds),
            deadline_s=START_DEADLINE_S,
            command=command,
            filters=filters,
            env=variables,
            reaps=self.reaps,
        )
        for pidfd in answer.fds:
            oom_score.expose(pidfds.pid(pidfd))  # before it has forked: its Zygotes and sandboxes have it from there
        close_all(answer.fds)

    async def exec_foreign(
        self, interpreter: Interpreter, uids: UidBlock, wired: ForeignWire, procs_fds: Sequence[int], *, is_walled: bool
    ) -> int:
        """Exec another interpreter as a root Zygote, in a user namespace over a block of uids; its pidfd, the caller's.

        The interpreter is foreign code: it gets no capability in the initial user namespace, and its filters, no_new_privs and
        cgroups before the exec, by farm init. Args: is_walled: it is in an empty network namespace from the start.
        Raises: SandboxFailed, OSError."""
        own = [seccomp.root_filter()] if is_walled else [seccomp.root_filter(), seccomp.zygote_filter()]
        of_children = [seccomp.sandbox_filter(SANDBOX_UID), seccomp.zygote_filter()]
        answer = await self._wire.request(
            "exec_foreign",
            (wired.control, wired.words, *procs_fds),
            deadline_s=START_DEADLINE_S,
            command=interpreter.command(),
            filters=[program.hex() for program in of_children],
            own_filters=[program.hex() for program in own],
            env={**interpreter.variables, **environment.OF_LOADING},
            uids=[uids.first, uids.count],
            walled=is_walled,
            place="image" if interpreter.imports is not None else "",
            reaps=self.reaps,
        )
        for pidfd in answer.fds:
            oom_score.expose(pidfds.pid(pidfd))
        return take_pidfd(answer.fds)

    async def exit_status(self, number: int, *, deadline_s: float) -> int | None:
        """How a process ended whose Zygote ended before it; None: unknown. Args: number: in the farm."""
        try:
            answer = await self._wire.request("status_of", (), deadline_s=deadline_s, number=number)
        except SandboxFailed:  # the farm is gone
            return None
        close_all(answer.fds)
        return read_status(answer.message)

    def release(self, tree: int) -> None:
        """Have the launcher close the last fd of a detached tree, which is the caller's no more.

        It frees what a function has left there, for as long as it takes: 20 ms for 48 MB in a tmpfs. Done by a thread of the
        daemon that would be the daemon's time, in which its loop and all functions wait; in the farm's cgroup it is one
        share among theirs."""
        try:
            socket.send_fds(self._releases, [b"tree"], [tree])
        except OSError:  # it has fallen behind, or is gone
            asyncio.get_running_loop().run_in_executor(None, os.close, tree)
            return
        os.close(tree)
        self._say_release()

    def _say_release(self) -> None:
        """Tell the launcher that the trees which it was sent are its alone; when it has fallen behind, as soon as it hears."""
        loop, fd = asyncio.get_running_loop(), self._releases.fileno()
        loop.remove_writer(fd)
        try:
            self._releases.send(RELEASE)
        except BlockingIOError:
            loop.add_writer(fd, self._say_release)
        except OSError:
            return  # it is gone, and its fds with it

    async def close(self) -> None:
        """Kill every process of the farm and wait for the launcher."""
        self._wire.close()
        asyncio.get_running_loop().remove_writer(self._releases.fileno())
        self._releases.close()
        if self._launcher.returncode is None:
            self._launcher.kill()  # farm init follows by PR_SET_PDEATHSIG, and the pid namespace with it
        await self._launcher.wait()
        self._cgroup.kill_nowait()


def farm_path(state_dir: Path) -> Path:
    """Where the base is mounted, in the daemon's private mount namespace."""
    return state_dir / "base"
