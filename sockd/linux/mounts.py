"""Mounts, by path where a tree is built once and by fd where a sandbox is made.

Owns nothing; callers own the fds. Rules measured on this kernel: a bind costs the number of children of its
source mount, so every source of a bind here is a mount without children; a detached tree is in no mount table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sockd.linux import syscalls
from sockd.linux.syscalls import MountAttr, MountFlag

PRIVATE_TMP = MountAttr.NOSUID | MountAttr.NODEV
"""What a writable tmpfs carries."""
SEALED = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV
"""What every tree that user code can see carries: read-only, no setuid files, no devices."""


def enter_private_namespace() -> None:
    """Give this process a mount namespace of its own from which nothing propagates; it ends with the process."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, MountFlag.REC | MountFlag.PRIVATE)


def mount_tmpfs(target: str, *, size_bytes: int, flags: MountFlag = MountFlag.NOSUID | MountFlag.NODEV) -> None:
    """A tmpfs at `target`, root's, mode 0755."""
    syscalls.mount("tmpfs", target, "tmpfs", flags, f"size={size_bytes},mode=0755")


def bind_sealed(source: str, target: str) -> None:
    """Bind a directory read-only, nosuid, nodev at `target`, without the mounts below it."""
    attach(sealed_copy(source), syscalls.AT_FDCWD, target)


def bind_tree(source: str, target: str) -> None:
    """Bind a mount with all that is mounted below it at `target`, as it is."""
    attach(syscalls.open_tree(syscalls.AT_FDCWD, source, recursive=True), syscalls.AT_FDCWD, target)


def sealed_copy(source: str) -> int:
    """A detached, sealed copy of the mount of one directory; an fd."""
    copy = syscalls.open_tree(syscalls.AT_FDCWD, source, recursive=False)
    try:
        syscalls.mount_setattr(copy, SEALED, recursive=False)
    except OSError:
        os.close(copy)
        raise
    return copy


def seal(target: str) -> None:
    """Make the mount at `target` itself read-only; those below it stay as they are."""
    syscalls.mount("none", target, None, MountFlag.REMOUNT | MountFlag.BIND | MountFlag.RDONLY | MountFlag.NOSUID)


def replace_by_sealed(target: str) -> None:
    """Put a sealed copy in the place of the mount at `target`; those below it are copied as they are.

    A remount would be refused (EBUSY) while a descriptor of the mount is open for writing. A process that another thread has
    just forked has each of ours until its exec(2). Of a copy there is none."""
    copy = syscalls.open_tree(syscalls.AT_FDCWD, target, recursive=True)
    with owned(copy):
        syscalls.mount_setattr(copy, SEALED, recursive=False)
        umount_tree(target)
        syscalls.move_mount(copy, syscalls.AT_FDCWD, target)


def attach_copy(mount_fd: int, root_fd: int, path: str, *, source: str = "") -> None:
    """Attach a copy of a detached mount at `path` in a detached tree; the original stays for the next (Linux 6.15).

    Args: source: a directory or a mount below it; empty: itself."""
    attach(syscalls.open_tree(mount_fd, source, recursive=False), root_fd, path)


def attach_tmpfs(root_fd: int, path: str, *, size_bytes: int, inodes: int) -> None:
    """A new tmpfs at `path` of a detached tree, open to every uid (mode 1777), limited in bytes and inodes (tmpfs(5))."""
    attach(new_tmp(size_bytes=size_bytes, inodes=inodes), root_fd, path)


def new_tmp(*, size_bytes: int, inodes: int) -> int:
    """A detached tmpfs as `attach_tmpfs` attaches one; an fd."""
    options: dict[str, str | int] = {"size": str(size_bytes), "nr_inodes": str(inodes), "mode": "1777"}
    return syscalls.new_filesystem("tmpfs", options, PRIVATE_TMP)


def attach(mount: int, directory_fd: int, path: str) -> None:
    """Attach a detached mount (move_mount(2)), and close its descriptor, whatever happens. Into a detached tree: Linux 6.15."""
    try:
        syscalls.move_mount(mount, directory_fd, path)
    finally:
        os.close(mount)


def mapped_copy(directory_fd: int, user_namespace: int, *, path: str = "") -> int:
    """A detached copy of a mount whose files have the owners that a user namespace maps theirs to; an fd.

    Args: path: of the mount, from the directory; empty: the directory itself."""
    copy = syscalls.open_tree(directory_fd, path, recursive=False)
    try:
        map_owners(copy, user_namespace)
    except BaseException:
        os.close(copy)
        raise
    return copy


def map_owners(mount_fd: int, user_namespace: int) -> None:
    """Show the files of a detached mount, not of those over it, with the owners that a user namespace maps theirs to.

    Raises: OSError naming the call."""
    syscalls.mount_setattr(mount_fd, MountAttr.IDMAP, recursive=False, user_namespace=user_namespace)


def new_overlay(lower: int | str, upper: int | str, work: int | str) -> int:
    """A detached overlay (overlayfs), nosuid and nodev; an fd.

    Args: directories, all by descriptor (Linux 6.13) or all by path; before Linux 6.15 in mounts of the caller's namespace."""
    options: dict[str, str | int] = {
        "lowerdir" if isinstance(lower, str) else "lowerdir+": lower,
        "upperdir": upper,
        "workdir": work,
        "redirect_dir": "on",  # or rename(2) of a directory of the lower one would be refused
        # Each of these asks more of the lower file system, or writes more into the upper, for overlays that are mounted again.
        "index": "off",
        "metacopy": "off",
        "nfs_export": "off",
        "xino": "off",
        "uuid": "off",
    }
    return syscalls.new_filesystem("overlay", options, PRIVATE_TMP)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors; -1 is none."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


@contextmanager
def owned(fd: int) -> Iterator[int]:
    """An fd that is closed on the way out, whatever happens."""
    try:
        yield fd
    finally:
        os.close(fd)


def umount_tree(target: str) -> None:
    """Detach the mount at `target` and everything mounted below it (umount2(2), MNT_DETACH)."""
    syscalls.umount(target)
