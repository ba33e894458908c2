"""Roots over an image in mount namespaces of their own, in which files of the image's owner are the sandbox's.

A mount takes an id map only while it is detached, and an overlay its layers before Linux 6.15 only from mounts of the namespace
that it is made in. So both are made in a copy of the image's namespace, and what was made takes the place of the copy's tree:

    mapped      the tree itself, with an id map for the image's mount
    writable    an overlay of the image's mount with an id map, as `sockd.isolation.roots.writable_root` describes it

In the root that is left, neither the image's own mount nor the upper and work directories of an overlay have a path.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sockd.base.errors import SandboxFailed
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.image_base import Attaching
from sockd.isolation.roots.owner_maps import ROOT, OwnerMaps
from sockd.isolation.roots.program import Limits
from sockd.isolation.roots.root import AttachedRoot
from sockd.isolation.roots.writable_root import SOMEBODY, UPPER, WORK, new_changes
from sockd.linux import mounts, syscalls
from sockd.linux.erofs.mounting import mount_empty
from sockd.linux.mount_namespaces import MountNamespaces

TREE, LOWER, CHANGES = f"/{bases.PROC}", f"/{bases.PACKAGES}", f"/{bases.TMP}"
"""Where the parts of a root are attached until it is one: mount points that each image has."""


class WritableAttachedRoot(AttachedRoot):
    """Made for one function: `replace_tmp` would lose its changes."""

    def replace_tmp(self, limits: Limits) -> None:
        raise NotImplementedError("a writable root is made for one function: it has no spares")


def mapped(namespaces: MountNamespaces, template: int, user_namespace: int, limits: Limits) -> tuple[int, int]:
    """A copy of an image's namespace whose root shows files with the owners that a user namespace maps theirs to.

    Returns: descriptors of the namespace and of its root. Raises: OSError naming the call."""
    tmp = mounts.new_tmp(size_bytes=limits.tmp_bytes, inodes=limits.tmp_inodes)

    def build() -> str:
        with mounts.owned(syscalls.open_tree(syscalls.AT_FDCWD, "/", recursive=True)) as tree:
            mounts.map_owners(tree, user_namespace)
            syscalls.move_mount(tree, syscalls.AT_FDCWD, TREE)
        syscalls.move_mount(tmp, syscalls.AT_FDCWD, f"{TREE}/{bases.TMP}")
        return TREE

    with mounts.owned(tmp):
        return namespaces.rebuild(template, build)


def writable(
    namespaces: MountNamespaces,
    template: int,
    user_namespace: int,
    uid: int,
    limits: Limits,
    furniture: tuple[str, ...],
) -> tuple[int, int]:
    """A namespace whose root is an overlay of an image that a uid may change.

    Args:
        template: the image's namespace; user_namespace: maps the image's owner to the uid.
        furniture: paths of the image over which a mount stands, which stands over the overlay as well.
    Returns: descriptors of the namespace and of its root. Raises: OSError naming the call."""
    changes = new_changes(uid, {"size": str(limits.tmp_bytes), "nr_inodes": str(limits.tmp_inodes)})

    def build() -> str:
        mounts.attach(mounts.mapped_copy(syscalls.AT_FDCWD, user_namespace, path="/"), syscalls.AT_FDCWD, LOWER)
        syscalls.move_mount(changes, syscalls.AT_FDCWD, CHANGES)
        mounts.attach(mounts.new_overlay(LOWER, f"{CHANGES}/{UPPER}", f"{CHANGES}/{WORK}"), syscalls.AT_FDCWD, TREE)
        for path, source in (*((each, f"/{each}") for each in furniture), (bases.TMP, f"{CHANGES}/{bases.TMP}")):
            mounts.attach_copy(syscalls.AT_FDCWD, syscalls.AT_FDCWD, f"{TREE}/{path}", source=source)
        return TREE

    with mounts.owned(changes):
        return namespaces.rebuild(template, build)


def why_no_writable(directory: Path, attaching: Attaching, *, by_loop: bool) -> str:
    """The kernel's words when no image in a directory can have a writable root; empty when it can. Makes one. Blocks briefly.

    Args: by_loop: as of `sockd.linux.erofs.mounting.mount_image`."""
    limits = Limits(memory_bytes=0, pids=0, cpus=0, tmp_bytes=1 << 20, tmp_inodes=16)
    maps = OwnerMaps()
    try:
        with mounts.owned(_namespace_of_empty_image(directory, attaching, by_loop=by_loop)) as template:
            mounts.close_all(writable(attaching.namespaces, template, maps.of(SOMEBODY, ROOT), SOMEBODY, limits, ()))
    except SandboxFailed as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    finally:
        maps.close()
    return ""


def _namespace_of_empty_image(directory: Path, attaching: Attaching, *, by_loop: bool) -> int:
    points = (bases.PROC, bases.PACKAGES, bases.TMP)
    with (
        mounts.owned(mount_empty(directory, points, by_loop=by_loop)) as image,
        tempfile.TemporaryDirectory(dir=attaching.stage) as place,
    ):
        syscalls.move_mount(image, syscalls.AT_FDCWD, place)
        try:
            return attaching.namespaces.of_tree(place)
        finally:
            mounts.umount_tree(place)
