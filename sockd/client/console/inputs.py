"""Files and stdin that a command sends, with bounded size. Owns nothing."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sockd.client.console.output import USAGE, Failure

MB = 1 << 20
PAYLOAD_BYTES = 64 * MB
"""Maximum size of an event or body that a command sends; the worker's limit (http.max_payload_bytes) is usually lower."""
TEXT_BYTES = MB
"""Maximum size of a secret or requirements.txt."""
ARCHIVE_BYTES, MODULE_BYTES = 50 * MB, MB
"""The worker's default limits; larger files need a query of its limits."""

Limit = Callable[[], int]


def read_file(path: Path, most: int, ask: Limit | None = None) -> bytes:
    """Read a file. Args: most: bytes; ask: returns the limit for a larger file. Raises: Failure."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _read(file, str(path), most, ask)
    except OSError as error:
        raise Failure(f"{path} cannot be read", why=error.strerror or str(error), exit_code=USAGE) from None


def read_stdin(most: int) -> bytes:
    """Read stdin. Raises: Failure."""
    return _read(sys.stdin.buffer, "the standard input", most, None)


def _read(file: BinaryIO, name: str, most: int, ask: Limit | None) -> bytes:
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size > most:
        most = ask() if ask is not None else most
        if found.st_size > most:
            raise _too_large(name, found.st_size, most)
    pieces, size = [], 0
    while piece := file.read(min(MB, most + 1 - size)):  # one byte more than there may be tells that there is more
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise _too_large(name, size, most)
    return b"".join(pieces)


def _too_large(name: str, size: int, most: int) -> Failure:
    return Failure(f"{name} is too large", why=f"it has {size} bytes or more; the limit is {most}", exit_code=USAGE)
