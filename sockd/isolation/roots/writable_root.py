"""The root of one sandbox that may change its image's files: an overlay (overlayfs) of the image, which stays as it is.

    tmpfs of the sandbox   tmp    its /tmp
                           upper  changed and new files, and marks of removed ones
                           work   overlayfs's own
    /                      upper over the image, nosuid, nodev

One tmpfs holds all, so one limit is that of all, its pages are the sandbox's memory, and it ends with the sandbox. Neither upper
nor work has a path in the sandbox: what a process forges there would be read as overlayfs's own marks.

The sandbox changes files that are its own: those of the image's USER, else of root (`owner_maps`).
"""

from __future__ import annotations

import os

from sockd.isolation.roots import base as bases
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.owner_maps import ROOT, OwnerMaps
from sockd.isolation.roots.program import Limits
from sockd.isolation.roots.root import DetachedRoot
from sockd.linux import mounts, syscalls
from sockd.linux.procfs import Procfs

UPPER, WORK = "upper", "work"


class WritableRoot(DetachedRoot):
    """Made for one function: `replace_tmp` would lose its changes."""

    @classmethod
    def over(cls, image: ImageBase, limits: Limits, uid: int, maps: OwnerMaps, procfs: Procfs) -> WritableRoot:
        """Args: uid: on the host, of its process. Raises: OSError naming the call; then nothing stays behind."""
        tree, _ = image.at
        root = cls(-1, image, procfs)
        try:
            changes = new_changes(uid, {"size": str(limits.tmp_bytes), "nr_inodes": str(limits.tmp_inodes)})
            root.spent.append(changes)
            mapped = mounts.mapped_copy(tree, maps.of(uid, image.owner))
            root.spent.append(mapped)
            root.fd = overlay(mapped, changes)
            mounts.attach_copy(changes, root.fd, bases.TMP, source=bases.TMP)
            for path in image.furniture:
                mounts.attach_copy(tree, root.fd, path, source=path)
        except BaseException:
            root.close()
            raise
        return root

    def replace_tmp(self, limits: Limits) -> None:
        raise NotImplementedError("a writable root is made for one function: it has no spares")


def new_changes(uid: int, options: syscalls.FileSystemOptions) -> int:
    """A detached tmpfs for the changes and the /tmp of a uid; an fd. Args: options: its limits (tmpfs(5))."""
    changes = syscalls.new_filesystem("tmpfs", options, mounts.PRIVATE_TMP)
    try:
        for name, mode in ((bases.TMP, 0o1777), (UPPER, 0o755), (WORK, 0o700)):
            os.mkdir(name, dir_fd=changes)
            os.chmod(name, mode, dir_fd=changes)  # whatever the umask
        os.chown(UPPER, uid, uid, dir_fd=changes)
    except BaseException:
        os.close(changes)
        raise
    return changes


def overlay(lower: int, changes: int) -> int:
    """A detached overlay of a detached mount; an fd. Args: changes: of the uid that may change it. Raises: OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with (
        mounts.owned(os.open(UPPER, flags, dir_fd=changes)) as upper,
        mounts.owned(os.open(WORK, flags, dir_fd=changes)) as work,
    ):
        return mounts.new_overlay(lower, upper, work)


SOMEBODY = 1000


def why_no_writable_roots() -> str:
    """The kernel's words when there can be none on this host; empty when there can. Makes one. Blocks briefly."""
    maps = OwnerMaps()
    try:
        with (
            mounts.owned(syscalls.new_filesystem("tmpfs", {}, mounts.PRIVATE_TMP)) as image,
            mounts.owned(new_changes(SOMEBODY, {})) as changes,
            mounts.owned(mounts.mapped_copy(image, maps.of(SOMEBODY, ROOT))) as lower,
        ):
            os.close(overlay(lower, changes))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        maps.close()
    return ""
