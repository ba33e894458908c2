"""Mounting an EROFS image from a plain file, without a path in a mount table.

Owns nothing; callers own the descriptors. From the file itself it needs Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE; through a
loop device any kernel does it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sockd.base.errors import DamagedImage, SandboxFailed
from sockd.base.file_tree import Inode
from sockd.linux import loop_device, mounts, syscalls
from sockd.linux.erofs.layout import Layout
from sockd.linux.ways import OLDEST, Feature, Found, Release, Way

FILE, LOOP = "file", "loop"
IMAGES = Feature(
    "container images",
    (
        Way(FILE, (6, 12), "EROFS mounted from files", "", str),
        Way(LOOP, OLDEST, "EROFS through loop devices", "up to 1.2 times as long to a first answer", str),
    ),
)
"""How images are mounted, as in `sockd.linux.ways`; what is tried depends on the directory (`find_way`)."""
_REASONS = {
    errno.ENODEV: "this kernel has no EROFS (CONFIG_EROFS_FS)",
    errno.ENOTBLK: "EROFS is not mounted from a file: that needs Linux 6.12, CONFIG_EROFS_FS_BACKED_BY_FILE, and no tmpfs",
    errno.EPERM: "mounting EROFS needs CAP_SYS_ADMIN in the initial user namespace",
}
"""By what fsopen(2) and fsconfig(2) fail with."""


def mount_image(path: str, *, by_loop: bool = False) -> int:
    """A detached mount of the image, read-only, nosuid and nodev; an fd, close-on-exec. It may block while the file does.

    Args:
        path: of a regular file, also as /proc/self/fd/N; without a loop device not on a tmpfs, which has no read_folio. The mount
            holds the file open.
        by_loop: through a loop device.
    Raises: SandboxFailed, if this kernel cannot; DamagedImage, if the kernel refuses the image; other OSErrors."""
    try:
        return _mount_by_loop(path) if by_loop else syscalls.new_filesystem("erofs", {"source": path}, mounts.SEALED)
    except OSError as error:
        if error.errno in _REASONS:
            raise SandboxFailed(_REASONS[error.errno]) from error
        if error.errno in (errno.EINVAL, errno.EUCLEAN, errno.EBADMSG):
            raise DamagedImage("the kernel refuses the image's superblock") from error
        raise


def _mount_by_loop(path: str) -> int:
    with (
        mounts.owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file,
        mounts.owned(loop_device.attach(file)) as device,
    ):
        return syscalls.new_filesystem("erofs", {"source": f"/proc/self/fd/{device}", "ro": None}, mounts.SEALED)


def find_way(directory: Path, kernel: Release | None = None) -> tuple[Found | None, str]:
    """Try how images in a directory can be mounted.

    Args: kernel: take no way that is newer than this one; None: any.
    Returns: the way, or None; and why there is none."""
    reason = ""
    for way in IMAGES.ways:
        why = "sandbox.kernel" if kernel is not None and way.since > kernel else ""
        why = why or why_no_images(directory, by_loop=way.name == LOOP)
        if not why:
            return Found(way, reason), ""
        reason = f"{reason}; by a loop device: {why}" if reason and why != reason else why
    return None, reason


def why_no_images(directory: Path, *, by_loop: bool = False) -> str:
    """The reason for which images in this directory cannot be mounted; empty if they can. Mounts one with nothing in it."""
    try:
        os.close(mount_empty(directory, by_loop=by_loop))
    except SandboxFailed as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    return ""


def mount_empty(directory: Path, names: Sequence[str] = (), *, by_loop: bool = False) -> int:
    """A mount of a new image with empty directories alone, to try what the kernel can do; an fd, as of `mount_image`.

    Args: directory: for the image's file, which has no name there. Raises: as `mount_image`."""
    layout = Layout.plan({name: Inode(mode=stat.S_IFDIR | 0o755) for name in ("", *names)})
    with tempfile.TemporaryFile(dir=directory) as image:
        image.write(layout.metadata)
        image.flush()
        return mount_image(f"/proc/self/fd/{image.fileno()}", by_loop=by_loop)
