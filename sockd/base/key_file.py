"""A file with one random key of 32 bytes, which only its owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sockd.base.errors import BadConfig

KEY_BYTES = 32


def read_key(path: Path) -> bytes | None:
    """The key, None when there is no file.

    Raises: BadConfig when the file is no key, or when others than its owner may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadConfig(f"the key {path} cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise BadConfig(f"the key {path} must be a file that its owner alone may read: chmod 600 {path}")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise BadConfig(
            f"{path} is no key: it must hold {KEY_BYTES} random bytes and nothing else; put the right file back"
        )
    return key


def make_key(path: Path) -> bytes:
    """Write a new key, which is on the disk when this returns. Raises: BadConfig, also when there is a file."""
    key = os.urandom(KEY_BYTES)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(fd)
    except OSError as error:
        raise BadConfig(f"the key {path} cannot be written: {error.strerror}") from None
    return key
