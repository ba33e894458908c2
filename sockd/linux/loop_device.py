"""Loop devices (loop(4)): a regular file as a read-only block device, for file systems that are mounted from a device alone.

Owns nothing: a device that is configured here is freed by the kernel with its last user, which is a mount or a descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_CONTROL = "/dev/loop-control"
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_BLKRASET = 0x1262
_LO_FLAGS_READ_ONLY, _LO_FLAGS_AUTOCLEAR, _LO_FLAGS_DIRECT_IO = 1, 4, 16
_CONFIG = struct.Struct("=II 52x I 176x 64x")
"""struct loop_config of linux/loop.h: the file, the block size, and of struct loop_info64 the flags alone."""
_READ_AHEAD_SECTORS = 128 * 2
"""128 KiB, as of other mounts. Linux 6.18 would read 2.5 MiB ahead, of an image whose bytes may come over a network."""
_TRIES = 32
"""Others may take a device between its choice and its configuration."""


def attach(file: int) -> int:
    """A descriptor of a device that reads a file; /proc/self/fd has its path. Args: file: the caller's.

    Raises: OSError naming what failed: FileNotFoundError where there are no loop devices."""
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device = os.open(f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Not through the page cache of the file: the mount has one of its own.
                flags = _LO_FLAGS_READ_ONLY | _LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO
                fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(file, 0, flags))
                fcntl.ioctl(device, _BLKRASET, _READ_AHEAD_SECTORS)
                return device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise OSError(error.errno, f"LOOP_CONFIGURE: {error.strerror}") from None
        raise OSError(errno.EBUSY, "LOOP_CONFIGURE: every free loop device was taken by others")
    finally:
        os.close(control)
