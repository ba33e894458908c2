"""The root of one sandbox that may change its image's files: an overlay (overlayfs) of the image, which stays as it is.

    tmpfs of the sandbox   tmp    its /tmp
                           upper  changed and new files, and marks of removed ones
                           work   overlayfs's own
    /                      upper over the image, nosuid, nodev

One tmpfs holds all, so one limit is that of all, its pages are the sandbox's memory, and it ends with the sandbox. Neither upper
nor work has a path in the sandbox: what a process forges there would be read as overlayfs's own marks.

The sandbox's process has a uid of its own and no capability, and the image's files are root's. So the image's mount is mapped
(MOUNT_ATTR_IDMAP): files of uid and gid 0 are the sandbox's own, those of others are as they are.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from sockd.images import base as bases
from sockd.images.image_base import ImageBase
from sockd.images.program import Limits
from sockd.images.root import DetachedRoot
from sockd.kernel import mounts, syscalls, user_namespaces
from sockd.kernel.procfs import Procfs

UPPER, WORK = "upper", "work"
END_OF_IDS = 0xFFFFFFFF
"""The first number that is no id."""
MOST_MAPS = 64
"""Kept for the next sandbox with the same uid; uids are given out again last in, first out."""


class OwnerMaps:
    """Id maps that show root's files as those of a sandbox's uid. Owns a user namespace for each of the last uids."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[int, int] = OrderedDict()

    def of(self, uid: int) -> int:
        """The namespace of a uid of the host; ours. Raises: OSError naming the call."""
        if uid not in self._namespaces:
            self._namespaces[uid] = user_namespaces.new(root_is(uid))
            if len(self._namespaces) > MOST_MAPS:
                os.close(self._namespaces.popitem(last=False)[1])
        self._namespaces.move_to_end(uid)
        return self._namespaces[uid]

    def close(self) -> None:
        """Mounts keep their maps. Safe to call twice."""
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])


def root_is(uid: int) -> list[user_namespaces.Extent]:
    """The map of 0 to a uid and of all others to themselves; what an image says belongs to this uid is nobody's. Pure."""
    return [(0, uid, 1), (1, 1, uid - 1), (uid + 1, uid + 1, END_OF_IDS - uid - 1)]


class WritableRoot(DetachedRoot):
    """Made for one function: `replace_tmp` would lose its changes."""

    @classmethod
    def over(cls, image: ImageBase, limits: Limits, uid: int, maps: OwnerMaps, procfs: Procfs) -> WritableRoot:
        """Args: uid: on the host, of its process. Raises: OSError naming the call; then nothing stays behind."""
        tree, _ = image.at
        root = cls(-1, image, procfs)
        try:
            options: dict[str, str | int] = {"size": str(limits.tmp_bytes), "nr_inodes": str(limits.tmp_inodes)}
            changes = syscalls.new_filesystem("tmpfs", options, mounts.PRIVATE_TMP)
            root.spent.append(changes)
            mapped = mounts.mapped_copy(tree, maps.of(uid))
            root.spent.append(mapped)
            root.fd = overlay(mapped, changes, uid)
            mounts.attach_copy(changes, root.fd, bases.TMP, source=bases.TMP)
            for path in image.furniture:
                mounts.attach_copy(tree, root.fd, path, source=path)
        except BaseException:
            root.close()
            raise
        return root

    def replace_tmp(self, limits: Limits) -> None:
        raise NotImplementedError("a writable root is made for one function: it has no spares")


def overlay(lower: int, changes: int, uid: int) -> int:
    """A detached overlay of a mount, which a uid may change; an fd. Args: changes: a new tmpfs. Raises: OSError."""
    for name, mode in ((bases.TMP, 0o1777), (UPPER, 0o755), (WORK, 0o700)):
        os.mkdir(name, dir_fd=changes)
        os.chmod(name, mode, dir_fd=changes)  # whatever the umask
    os.chown(UPPER, uid, uid, dir_fd=changes)
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
            mounts.owned(syscalls.new_filesystem("tmpfs", {}, mounts.PRIVATE_TMP)) as changes,
            mounts.owned(mounts.mapped_copy(image, maps.of(SOMEBODY))) as lower,
        ):
            os.close(overlay(lower, changes, SOMEBODY))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        maps.close()
    return ""
