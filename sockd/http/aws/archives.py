"""Archives within requests: base64 in JSON, decoded into a file.

Owns the file until its block ends. An archive of 50 MB is 67 MB of text: it is decoded in a thread, and piece by
piece, so that the interpreter's lock is never held for long.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from sockd.http.aws.errors import ApiError, InvalidParameterValue, InvalidRequestContent

_PIECE_CHARS = 1 << 20
"""Four characters are three bytes."""


class CodeTooLarge(ApiError):
    """The archive is larger than the worker accepts."""

    status = 413
    error_type = "RequestEntityTooLargeException"

    def __init__(self, limit: int) -> None:
        super().__init__(f"Zipped size must be smaller than {limit} bytes")


class Archive(NamedTuple):
    """A decoded archive; the path is valid within the block."""

    path: Path
    size_bytes: int
    sha256: str
    """base64, as AWS tells it."""


EMPTY_ZIP = b"PK\5\6" + bytes(18)


@contextlib.asynccontextmanager
async def archive(text: msgspec.Raw, directory: Path, limit_bytes: int) -> AsyncIterator[Archive]:
    """The archive in a member of a body.

    Args: text: a JSON string.
    Raises: InvalidRequestContent, InvalidParameterValue, CodeTooLarge, OSError."""
    with contextlib.ExitStack() as stack:
        file = await asyncio.to_thread(
            lambda: stack.enter_context(tempfile.NamedTemporaryFile(dir=directory, suffix=".zip"))
        )
        yield await asyncio.to_thread(_decode, text, file, limit_bytes)


@contextlib.asynccontextmanager
async def empty_archive(directory: Path) -> AsyncIterator[Path]:
    """One without files: the code of a function whose files are all in its image."""
    with contextlib.ExitStack() as stack:

        def write() -> Path:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=directory, suffix=".zip"))
            file.write(EMPTY_ZIP)
            file.flush()
            return Path(file.name)

        yield await asyncio.to_thread(write)


def _decode(text: msgspec.Raw, file: IO[bytes], limit_bytes: int) -> Archive:
    raw = bytes(text)
    if not raw.startswith(b'"'):
        raise InvalidRequestContent("Could not parse request body into json: ZipFile must be a base64-encoded string")
    if b"\\" in raw:  # some encoders escape slashes
        raw = b'"%b"' % msgspec.json.decode(raw, type=str).encode("ascii", "replace")
    view = memoryview(raw)[1:-1]
    if len(view) // 4 * 3 > limit_bytes + 2:
        raise CodeTooLarge(limit_bytes)
    if not len(view):
        raise InvalidParameterValue("ZipFile is empty; send a zip")
    digest, size = hashlib.sha256(), 0
    for start in range(0, len(view), _PIECE_CHARS):
        piece = view[start : start + _PIECE_CHARS]
        try:
            data = binascii.a2b_base64(piece, strict_mode=True)
        except binascii.Error as error:
            raise InvalidRequestContent(
                f"Could not parse request body into json: ZipFile is not base64: {error}"
            ) from None
        if len(piece) == _PIECE_CHARS and len(data) != _PIECE_CHARS // 4 * 3:
            raise InvalidRequestContent(
                "Could not parse request body into json: ZipFile is not base64: it ends before its end"
            )
        digest.update(data)
        file.write(data)
        size += len(data)
    file.flush()
    if size > limit_bytes:
        raise CodeTooLarge(limit_bytes)
    return Archive(Path(file.name), size, base64.b64encode(digest.digest()).decode())
