"""What an import says of this worker's own trouble, such as a full disk: another import may not meet it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sockd.base.errors import HostFailed, NoCapacity, SockdError, StorageFull

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
OF_HOST = frozenset((errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN))
UNUSED = "free some of it, or remove functions (sockd rm NAME) and images that none needs (sockd images gc)"
LEAST_SHARE = 8
"""The cache is named if it takes the eighth part of its disk, and more than is free."""


def passing(error: SockdError | OSError) -> SockdError | None:
    """The error of a worker that lacks disk, memory or descriptors just now; None: it may be the image's fault."""
    if isinstance(error, NoCapacity | HostFailed):
        return error
    code = error.errno if isinstance(error, OSError) else None
    if code in FULL:
        return StorageFull()
    return HostFailed(f"{os.strerror(code)} ({errno.errorcode[code]}); try again") if code in OF_HOST else None


def is_full(error: BaseException) -> bool:
    """Whether a disk has no space left."""
    return isinstance(error, StorageFull) or (isinstance(error, OSError) and error.errno in FULL)


def storage_full(cache: Path | None) -> StorageFull:
    """What to do about the disk of the state directory. Blocks. Args: cache: the file of L1, on that disk."""
    try:
        taken = cache.stat().st_blocks * 512 if cache is not None else 0
        disk = os.statvfs(cache or "/")
    except OSError:
        return StorageFull(UNUSED)
    whole, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    if taken * LEAST_SHARE < whole or taken < free:
        return StorageFull(UNUSED)
    return StorageFull(
        f"{cache}, the cache of images' chunks, takes {taken >> 20} of its {whole >> 20} MB: set images.cache_mb to less and "
        "restart the worker, or free some of the disk"
    )
