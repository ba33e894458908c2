"""How roots are made: detached, or attached in a mount namespace for each.

A root is a copy of the base. A spare waits in it, and the code is mounted there when it becomes a function; its /proc is that of
its own pid namespace.

    detached    in no mount table, and mounted into while it is there (Linux 6.15)
    attached    the root of a mount namespace that holds nothing else; the daemon's thread enters it for each mount (any kernel)

From neither does `..` lead anywhere: there is nothing above a detached tree, nor above the root of such a namespace. Which of the
two is tried, not guessed from the kernel's version, once at start (`sockd.linux.ways`).
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from typing import Literal, Protocol

from sockd.isolation.roots import attached_images
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.attached_images import WritableAttachedRoot
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.owner_maps import Owner, OwnerMaps
from sockd.isolation.roots.premade import Premade
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.roots.root import AttachedRoot, DetachedRoot, Root
from sockd.isolation.roots.tmp_layer import TmpLayer
from sockd.isolation.roots.writable_root import WritableRoot, why_no_writable_roots
from sockd.linux import mounts
from sockd.linux.mount_namespaces import MountNamespaces
from sockd.linux.ways import DETACHED, Ways


class Assembly(Protocol):
    """The one way in which this daemon makes roots."""

    @property
    def kind(self) -> Literal["detached", "attached"]:
        """Its name, for people."""

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        """A root, the caller's.

        Args:
            program: what will run in it; None: not known (a spare), or nothing that has code (a canary).
            uid: on the host, of its process: files of an image's owner are its own; 0: they stay as they are.
        Raises: OSError naming the call; then nothing stays behind."""

    async def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        """A root for the imports of a Zygote, the caller's: as a sandbox's, without code; in /proc it finds itself alone.

        Args: uid: as of `create`. Raises: OSError naming the call."""

    def layer_tmp(self, root: Root, layer: TmpLayer, limits: Limits, uid: int) -> None:
        """Give a root that no process has used yet a /tmp over what the init of a template has left in its own.

        Args: uid: on the host, of its process. Raises: OSError naming the call."""

    def why_no_tmp_layers(self) -> str:
        """Say why no root can have one; empty: they can. Blocks briefly."""

    def close(self) -> None:
        """Let go of everything but the roots that were made."""


class Detached:
    """Roots in no mount table. Those with a /tmp of the usual size are made ahead (130 us that no start waits for)."""

    kind: Literal["detached"] = "detached"

    def __init__(self, base: bases.Tree, ways: Ways, usual: Limits | None) -> None:
        self._base = base
        self._procfs = ways.procfs()
        self._usual = usual
        self._premade = Premade(self._make_usual, DetachedRoot.close)
        self._owner_maps = OwnerMaps()

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        if program is not None and program.base is not None:
            if program.writable_root:
                return WritableRoot.over(program.base, limits, uid, self._owner_maps, self._procfs)
            return self._owned(DetachedRoot.create(program.base, limits, self._procfs), program.base.owner, uid)
        is_usual = self._usual is not None and limits.same_tmp(self._usual)
        root = self._premade.take() if is_usual else DetachedRoot.create(self._base, limits, self._procfs)
        return self._owned(root, self._base.owner, uid)

    async def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        return await with_proc(self.create(limits, None, uid=uid), pidfd)

    def layer_tmp(self, root: Root, layer: TmpLayer, limits: Limits, uid: int) -> None:
        tmp, spent = layer.under(limits, uid, self._owner_maps)
        root.spent += spent
        mounts.attach(tmp, root.fd, bases.TMP)

    def why_no_tmp_layers(self) -> str:
        return why_no_writable_roots()

    def close(self) -> None:
        self._premade.close()
        self._owner_maps.close()
        self._procfs.close()

    def _owned(self, root: DetachedRoot, owner: Owner | None, uid: int) -> DetachedRoot:
        """The same root, in which an owner's files are those of a uid."""
        if owner is None or not uid:
            return root
        try:
            mounts.map_owners(root.fd, self._owner_maps.of(uid, owner))
        except BaseException:
            root.close()
            raise
        return root

    def _make_usual(self) -> DetachedRoot:
        assert self._usual is not None
        return DetachedRoot.create(self._base, self._usual, self._procfs)


class Attached:
    """Roots in mount namespaces of their own, which are copies of one that holds the base. Those with a /tmp of the usual size
    are made ahead. For the thread that made it."""

    kind: Literal["attached"] = "attached"

    def __init__(self, base: bases.Tree, ways: Ways, usual: Limits | None) -> None:
        """Raises: OSError naming the call; then nothing stays behind."""
        self._base = base
        self._usual = usual
        with ExitStack() as undo:
            self._namespaces = MountNamespaces.open()
            undo.callback(self._namespaces.close)
            self._template = self._namespaces.of_tree(str(base.path))
            undo.callback(os.close, self._template)
            self._procfs = ways.procfs()
            undo.pop_all()
        self._premade = Premade(self._make_usual, AttachedRoot.close)
        self._owner_maps = OwnerMaps()
        self._maps_owners = True

    def create(self, limits: Limits, program: Program | None, *, uid: int = 0) -> Root:
        if program is not None and program.base is not None:
            image = program.base
            if program.writable_root:
                return self._make_writable(limits, image, uid)
            return self._make_owned(limits, image.namespace, image.private_resolv_conf, image.owner, uid)
        if self._base.owner is not None and uid:
            return self._make_owned(limits, self._template, self._base.private_resolv_conf, self._base.owner, uid)
        if self._usual is not None and limits.same_tmp(self._usual):
            return self._premade.take()
        return self._make_of_base(limits)

    async def create_for_imports(self, limits: Limits, pidfd: int, *, uid: int = 0) -> Root:
        return await with_proc(self.create(limits, None, uid=uid), pidfd)

    def layer_tmp(self, root: Root, layer: TmpLayer, limits: Limits, uid: int) -> None:
        raise NotImplementedError("`why_no_tmp_layers` says so")

    def why_no_tmp_layers(self) -> str:
        return "mounts cannot be attached to a detached tree before Linux 6.15"

    def close(self) -> None:
        self._premade.close()
        self._owner_maps.close()
        self._procfs.close()
        template, self._template = self._template, -1
        mounts.close_all([template])
        self._namespaces.close()

    def _make_usual(self) -> AttachedRoot:
        assert self._usual is not None
        return self._make_of_base(self._usual)

    def _make_of_base(self, limits: Limits) -> AttachedRoot:
        return self._make(limits, self._template, self._base.private_resolv_conf)

    def _make(self, limits: Limits, template: int, resolv_conf: str) -> AttachedRoot:
        tmp = mounts.new_tmp(size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes)
        namespace, fd = self._namespaces.copy(template, tmp)
        return AttachedRoot(fd, namespace, resolv_conf, self._namespaces, self._procfs)

    def _make_owned(self, limits: Limits, template: int, resolv_conf: str, owner: Owner, uid: int) -> AttachedRoot:
        """A root in which an owner's files are those of a uid, where the kernel can show them so (EROFS: Linux 5.19)."""
        if uid and self._maps_owners:
            try:
                made = attached_images.mapped(self._namespaces, template, self._owner_maps.of(uid, owner), limits)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._maps_owners = False
            else:
                namespace, fd = made
                return AttachedRoot(fd, namespace, resolv_conf, self._namespaces, self._procfs)
        return self._make(limits, template, resolv_conf)

    def _make_writable(self, limits: Limits, image: ImageBase, uid: int) -> AttachedRoot:
        user_namespace = self._owner_maps.of(uid, image.owner)
        namespace, fd = attached_images.writable(
            self._namespaces, image.namespace, user_namespace, uid, limits, image.furniture
        )
        return WritableAttachedRoot(fd, namespace, image.private_resolv_conf, self._namespaces, self._procfs)


async def with_proc(root: Root, pidfd: int) -> Root:
    """A root with a /proc in which a process finds itself alone. Raises: OSError; then the root is closed."""
    try:
        await root.mount_proc(pidfd, only_own=True)
    except BaseException:
        root.close()
        raise
    return root


def open_assembly(ways: Ways, base: bases.Tree, usual: Limits | None = None) -> Assembly:
    """The assembly that a worker's ways name.

    Args: usual: the limits of most roots, a few of which are made ahead; None: none is. Raises: OSError."""
    return (Detached if ways.roots.name == DETACHED else Attached)(base, ways, usual)
