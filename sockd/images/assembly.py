"""How roots are put together: late, around a process that is there already, or early, before it is forked.

Late is what we want: a spare waits in its root, and the code is mounted when it becomes a function; its /proc is that of
its own pid namespace. It needs move_mount(2) into a detached tree (Linux 6.15) and procfs's `pidns=` (6.18). Early asks for
no more than open_tree(2) and mount_setattr(2) (5.12): the parts are mounted on a staging directory, in the daemon's private
mount namespace, a detached copy is taken of the whole, and the staging is unmounted at once. What that costs:

    no spares     the code must be known before the fork
    /proc         is the farm's, as only a capable process inside a pid namespace could mount another. hidepid=invisible
                  leaves a handler its own processes (every sandbox has a uid of its own), but by their numbers in the
                  farm: os.getpid() is 1 inside, and /proc/1 is not there; /proc/self and /proc/thread-self are right

Roots that stay attached could be mounted into on every kernel; but a Zygote is given the root's fd, and from an attached
tree `..` leads to the host. Which of the two is tried, not guessed from the kernel's version, once at start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

from sockd.images import base as bases
from sockd.images.owner_maps import Owner, OwnerMaps
from sockd.images.premade import Premade
from sockd.images.program import Limits, Program
from sockd.images.root import EarlyRoot, LateRoot, Root
from sockd.images.writable_root import WritableRoot
from sockd.kernel import mounts, pidfds, syscalls
from sockd.kernel.syscalls import MountAttr
from sockd.plain.errors import BadConfig


class Assembly(Protocol):
    """The one way in which this daemon makes roots."""

    @property
    def kind(self) -> Literal["late", "early"]:
        """Its name, for people."""

    spares: bool
    """Whether a root can be made before it is known what for."""
    reason: str
    """Why it is not the better one; empty when it is, or when it was asked for."""

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        """A root, the caller's.

        Args:
            program: what will run in it; None: not known (a spare), or nothing that has code (a canary).
            uid: on the host, of its process: files of an image's owner are its own; 0: they stay as they are.
        Raises: OSError naming the call; then nothing stays behind."""

    def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        """A root for the imports of a Zygote, the caller's: as a sandbox's, without code; in /proc it finds itself alone.

        Args: uid: as of `create`. Raises: OSError naming the call."""

    def close(self) -> None:
        """Let go of everything but the roots that were made."""


class Late:
    """Roots that are completed in use. Those with a /tmp of the usual size are made ahead (130 us that no start waits for)."""

    kind: Literal["late"] = "late"
    spares = True
    reason = ""

    def __init__(self, base: bases.Tree, usual: Limits | None) -> None:
        self._base = base
        self._usual = usual
        self._premade = Premade(self._make_usual, LateRoot.close)
        self._owner_maps = OwnerMaps()

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        if program is not None and program.base is not None:
            if program.writable_root:
                return WritableRoot.over(program.base, limits, uid, self._owner_maps)
            return self._owned(LateRoot.create(program.base, limits), program.base.owner, uid)
        is_usual = self._usual is not None and limits.same_tmp(self._usual)
        root = self._premade.take() if is_usual else LateRoot.create(self._base, limits)
        return self._owned(root, self._base.owner, uid)

    def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        root = self.create(limits, None, uid=uid)
        try:
            with mounts.owned(pidfds.pid_namespace(pidfd)) as namespace:
                mounts.attach_procfs(root.fd, bases.PROC, namespace, only_own=True)
        except BaseException:
            root.close()
            raise
        return root

    def close(self) -> None:
        self._premade.close()
        self._owner_maps.close()

    def _owned(self, root: LateRoot, owner: Owner | None, uid: int) -> LateRoot:
        """The same root, in which an owner's files are those of a uid."""
        if owner is None or not uid:
            return root
        try:
            mounts.map_owners(root.fd, self._owner_maps.of(uid, owner))
        except BaseException:
            root.close()
            raise
        return root

    def _make_usual(self) -> LateRoot:
        assert self._usual is not None
        return LateRoot.create(self._base, self._usual)


class Early:
    """Roots that are complete from the start. Owns a tmpfs with the staging directory and the farm's procfs."""

    kind: Literal["early"] = "early"
    spares = False

    def __init__(self, base: bases.Tree, path: Path, reason: str) -> None:
        self.reason = reason
        self._base = str(base.path)
        self._resolv_conf = base.private_resolv_conf
        self._path = str(path)
        self._stage = str(path / "stage")
        self._procfs = str(path / "proc")
        self._no_code = path / "no-code"

    @classmethod
    def open(cls, base: bases.Tree, procfs: int, path: Path, reason: str = "") -> Early:
        """Make `path` the place of assembly, in this process's mount namespace, which must be private.

        Args:
            procfs: the farm's /proc, a detached mount; it is attached here, for copies of a detached one need Linux 6.15.
        Raises: OSError naming the call."""
        path.mkdir(parents=True, exist_ok=True)
        mounts.mount_tmpfs(str(path), size_bytes=1 << 20)
        early = cls(base, path, reason)
        try:
            for name in ("stage", "proc", "no-code"):
                (path / name).mkdir()
            syscalls.move_mount(procfs, syscalls.AT_FDCWD, early._procfs)
        except BaseException:
            early.close()
            raise
        return early

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        """Without waiting: one staging directory serves all, as nothing else runs between mounting and unmounting."""
        code = (program.code if program is not None else None) or self._no_code
        mounts.bind_tree(self._base, self._stage)
        try:
            here = syscalls.AT_FDCWD
            tmp = f"{self._stage}/{bases.TMP}"
            mounts.attach_tmpfs(here, tmp, size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes)
            mounts.bind_sealed(str(code), f"{self._stage}/{bases.CODE}")
            if limits.network == "private":
                mounts.bind_sealed(self._resolv_conf, f"{self._stage}/{bases.RESOLV_CONF}")
            mounts.bind_tree(self._procfs, f"{self._stage}/{bases.PROC}")
            fd = syscalls.open_tree(here, self._stage, recursive=True)
        finally:
            mounts.umount_tree(self._stage)
        return EarlyRoot(fd, program)

    def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        return self.create(limits, None)

    def close(self) -> None:
        mounts.umount_tree(self._path)


def open_assembly(setting: str, base: bases.Tree, procfs: int, path: Path, usual: Limits | None = None) -> Assembly:
    """The assembly that was asked for; `auto`: late where the kernel can, else early.

    Args:
        procfs: the farm's /proc, a detached mount; path: where an early one may work; usual: the limits of most
            roots, a few of which are made ahead; None: none is.
    Raises: BadConfig: late was asked for and cannot be; OSError."""
    reason = "" if setting == "early" else why_not_late()
    if setting == "late" and reason:
        raise BadConfig(f'sandbox.roots = "late": {reason}')
    if setting == "early" or reason:
        return Early.open(base, procfs, path, reason)
    return Late(base, usual)


def why_not_late() -> str:
    """The kernel's words when roots cannot be made late on this host; empty when they can. Nothing stays behind."""
    try:
        try_late()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def try_late() -> None:
    """Do to a tree that is attached nowhere all that a late root needs. Raises: OSError naming the call."""
    tree = syscalls.new_filesystem("tmpfs", {}, MountAttr.NONE)
    with mounts.owned(tree):
        for name in ("source", "copy", "proc"):
            os.mkdir(name, dir_fd=tree)
        mounts.attach_copy(tree, tree, "copy")
        with mounts.owned(os.pidfd_open(os.getpid())) as pidfd, mounts.owned(pidfds.pid_namespace(pidfd)) as namespace:
            mounts.attach_procfs(tree, "proc", namespace)
