"""Mounting an EROFS image from a plain file, without a loop device and without a path in a mount table.

Owns nothing; callers own the descriptors. It needs Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from sockd.erofs.layout import Layout
from sockd.kernel import mounts, syscalls
from sockd.plain.errors import DamagedImage, SandboxFailed
from sockd.plain.file_tree import Inode

_REASONS = {
    errno.ENODEV: "this kernel has no EROFS (CONFIG_EROFS_FS)",
    errno.ENOTBLK: "EROFS is not mounted from a file: that needs Linux 6.12, CONFIG_EROFS_FS_BACKED_BY_FILE, and no tmpfs",
    errno.EPERM: "mounting EROFS needs CAP_SYS_ADMIN in the initial user namespace",
}
"""By what fsopen(2) and fsconfig(2) fail with."""


def mount_image(path: str) -> int:
    """A detached mount of the image, read-only, nosuid and nodev; an fd, close-on-exec. It may block while the file does.

    Args: path: of a regular file, also as /proc/self/fd/N; not on a tmpfs, which has no read_folio. The mount holds the file
        open.
    Raises: SandboxFailed, if this kernel cannot; DamagedImage, if the kernel refuses the image; other OSErrors."""
    try:
        return syscalls.new_filesystem("erofs", {"source": path}, mounts.SEALED)
    except OSError as error:
        if error.errno in _REASONS:
            raise SandboxFailed(_REASONS[error.errno]) from error
        if error.errno in (errno.EINVAL, errno.EUCLEAN, errno.EBADMSG):
            raise DamagedImage("the kernel refuses the image's superblock") from error
        raise


def why_no_images(directory: Path) -> str:
    """The reason for which images in this directory cannot be mounted; empty if they can. Mounts one with nothing in it."""
    layout = Layout.plan({"": Inode(mode=stat.S_IFDIR | 0o755)})
    try:
        with tempfile.TemporaryFile(dir=directory) as image:
            image.write(layout.metadata)
            image.flush()
            os.close(mount_image(f"/proc/self/fd/{image.fileno()}"))
    except SandboxFailed as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    return ""
