"""The farm: one mount namespace and one pid namespace for all sandboxes, with nothing of the host in it.

Owns the launcher process, the wires to it and to farm init, and the farm's scratch tmpfs. Killing farm init kills every
process in the farm, and farm init dies with the daemon (PR_SET_PDEATHSIG through the launcher), so a SIGKILL of the daemon
leaves nothing. Farm init execs root Zygotes when it is asked to; all else in the farm is forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sockd.errors import SandboxFailed
from sockd.kernel import cgroups, mounts, oom_score, pidfds, seccomp, syscalls
from sockd.sandbox import base as bases
from sockd.sandbox.control import ControlWire, close_all
from sockd.sandbox.farm_init import RELEASE

START_DEADLINE_S = 10.0
REMOVED = "removed"
"""A directory of the scratch tmpfs that is root's alone: what Zygotes that are gone have left, until it is deleted."""

_log = logging.getLogger(__name__)


class Farm:
    """The running farm. `close` ends every process in it."""

    def __init__(
        self,
        launcher: asyncio.subprocess.Process,
        wire: ControlWire,
        releases: socket.socket,
        scratch: int,
        cgroup: cgroups.Cgroup,
    ) -> None:
        self.procfs = -1
        """Its /proc, a detached mount; the farm's own."""
        self._launcher = launcher
        self._wire = wire
        self._releases = releases
        self._scratch = scratch
        self._cgroup = cgroup

    @classmethod
    async def start(cls, base: bases.Base, cgroup: cgroups.Cgroup, on_end: Callable[[], None]) -> Farm:
        """Exec the launcher and wait until farm init serves.

        Args:
            base: the tree to pivot_root onto; cgroup: for the launcher and farm init, owned by the farm from now on.
            on_end: called once if the farm ends by itself.
        Raises: SandboxFailed with the launcher's own words."""
        # Without limits of its own: all Zygotes share it, and one could fill it for the others. What a Zygote puts there, names
        # too, is charged to its cgroup, whose limit it meets first.
        options: dict[str, str | int] = {"size": "0", "nr_inodes": "0", "mode": "0755"}
        scratch = syscalls.new_filesystem("tmpfs", options, mounts.PRIVATE_TMP)
        os.mkdir(REMOVED, 0o700, dir_fd=scratch)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        releases, their_releases = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        releases.setblocking(False)
        passed = (theirs.fileno(), their_releases.fileno(), scratch, *cgroup.procs_fds)
        try:
            launcher = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "sockd.sandbox.farm_init", str(base.path), *map(str, passed)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
                env={"PYTHONPATH": str(Path(__file__).parents[2])},
            )
        except BaseException:
            os.close(scratch)
            ours.close()
            releases.close()
            raise
        finally:
            theirs.close()
            their_releases.close()
        farm = cls(launcher, ControlWire(ours, on_end), releases, scratch, cgroup)
        try:
            (farm.procfs,) = (await farm._wire.request("ready", (), deadline_s=START_DEADLINE_S)).fds
        except SandboxFailed as error:
            await farm.close()
            raise SandboxFailed("the farm did not start; run `sockd doctor`") from error
        return farm

    async def exec_zygote(self, control: socket.socket, procs_fds: Sequence[int]) -> None:
        """Exec a root Zygote that serves on `control` in the given cgroups. The caller keeps its fds."""
        filters = [program().hex() for program in (seccomp.root_filter, seccomp.sandbox_filter, seccomp.zygote_filter)]
        # Not -I: multiprocessing and loky start their processes with this interpreter's options, and -I ignores PYTHONPATH.
        command = [bases.interpreter(), "-s", "-S", f"/{bases.ZYGOTE}"]
        fds = (control.fileno(), *procs_fds)
        answer = await self._wire.request("exec", fds, deadline_s=START_DEADLINE_S, command=command, filters=filters)
        for pidfd in answer.fds:
            oom_score.expose(pidfds.pid(pidfd))  # before it has forked: its Zygotes and sandboxes have it from there
        close_all(answer.fds)

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

    def make_scratch(self, name: str, uid: int) -> str:
        """A private directory for one Zygote under the farm's /tmp; its path inside the farm."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._scratch)
        with mounts.owned(fd):
            os.mkdir(name, 0o700, dir_fd=fd)
            os.chown(name, uid, uid, dir_fd=fd)
        return f"/{bases.TMP}/{name}"

    def remove_scratch(self, name: str) -> bool:
        """Take a Zygote's directory out of the farm's reach, and have a thread delete it: there may be hundreds of thousands of
        files.

        Returns: False when it is still where it was; then no other Zygote may be given its owner's uid."""
        if self._scratch < 0:
            return True
        try:
            # The name is free and the files cannot be reached as soon as this returns, however long deleting them takes.
            os.rename(name, f"{REMOVED}/{name}", src_dir_fd=self._scratch, dst_dir_fd=self._scratch)
            fd = os.open(REMOVED, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._scratch)
        except FileNotFoundError:
            return True  # it ended before it had one
        except OSError as error:
            _log.error("the scratch directory of %s is not deleted: %s", name, error)
            return error.errno in (errno.EMFILE, errno.ENFILE)  # it was renamed
        asyncio.get_running_loop().run_in_executor(None, remove_tree, fd, name)
        return True

    async def close(self) -> None:
        """Kill every process of the farm and wait for the launcher."""
        self._wire.close()
        asyncio.get_running_loop().remove_writer(self._releases.fileno())
        self._releases.close()
        if self._launcher.returncode is None:
            self._launcher.kill()  # farm init follows by PR_SET_PDEATHSIG, and the pid namespace with it
        await self._launcher.wait()
        self._cgroup.kill_nowait()
        scratch, self._scratch = self._scratch, -1
        os.close(scratch)
        procfs, self.procfs = self.procfs, -1
        if procfs >= 0:
            os.close(procfs)


def remove_tree(directory: int, name: str) -> None:
    """Delete `name`, as far as it goes, and close the fd of the directory that it is in.

    Each directory below is first moved beside `name`: a package may have made trees so deep that a recursion, or a descriptor
    for each level, would not end."""
    numbers = itertools.count()
    names = [name]
    with mounts.owned(directory):
        while names:
            found = names.pop()
            with contextlib.suppress(OSError):
                names += _flatten(directory, found, (f"{name}.{number}" for number in numbers))
                os.rmdir(found, dir_fd=directory)


def _flatten(parent: int, name: str, fresh: Iterator[str]) -> list[str]:
    """Empty a directory of `parent`; its directories are in `parent` then, under these fresh names. Raises: OSError."""
    moved = []
    with mounts.owned(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as fd:
        with os.scandir(fd) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                moved.append(next(fresh))
                os.rename(entry.name, moved[-1], src_dir_fd=fd, dst_dir_fd=parent)
            else:
                os.unlink(entry.name, dir_fd=fd)
    return moved


def farm_path(state_dir: Path) -> Path:
    """Where the base is mounted, in the daemon's private mount namespace."""
    return state_dir / "base"
