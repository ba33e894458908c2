"""What the daemon and the import process say to each other: one line of JSON a message. Plain data for both ends.

process  a byte: it waits
daemon   a byte with descriptors, ImportRequest
process  Progress ... Resolved
daemon   Decision                                                 go on, or the image is here already
process  Progress ... Uncompiled                                  only if sources have no bytecode
daemon   Compiled
process  Progress ... Imported | Failed (also before Resolved)
"""

from __future__ import annotations

import msgspec

from sockd.base import errors
from sockd.base.errors import SockdError
from sockd.images.registry.credentials import Credentials
from sockd.images.registry.image import ImageConfig, Platform
from sockd.images.registry.limits import Limits
from sockd.images.store.image_facts import ImageFacts
from sockd.images.store.missing_bytecode import CompiledBatch, CompileJob

MOST_DESCRIPTORS = 4
MOST_LINE_BYTES = 16 << 20
"""A configuration has at most 8 MB."""
FAILURES: dict[str, type[SockdError]] = {
    each.__name__: each
    for each in (
        errors.BadImage,
        errors.NoSuchImage,
        errors.ImageTooLarge,
        errors.ImageAccessDenied,
        errors.RegistryUnavailable,
    )
}
"""Errors that pass from the process to the daemon, whose constructors take a message."""
STORAGE_FULL = "StorageFull"


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which image. Its descriptors, in order: a directory on disk, for temporary files; the file for the image's file system; the
    archive, if there is one; the file of answers to `Uncompiled`, if it compiles."""

    reference: str
    platform: Platform = Platform()
    limits: Limits = Limits()
    credentials: Credentials | None = None
    mirror: str = ""
    """HOST[:PORT][/PATH] of the registry that is asked first."""
    mirror_credentials: Credentials | None = None
    authorities: str = ""
    """Certificates (PEM) that registries are trusted by, besides the system's."""
    insecure_registries: tuple[str, ...] = ()
    redirect_hosts: tuple[str, ...] = ()
    directories: tuple[str, ...]
    """Mount points that the image must have."""
    files: tuple[str, ...]
    places: tuple[str, ...]
    """Directories that it must have, perhaps by a link."""
    has_archive: bool = False
    """Whether an archive was uploaded; otherwise the reference is for a registry."""
    compiles: bool = False
    """Whether the process reports sources without bytecode."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """For people."""

    text: str


class Resolved(msgspec.Struct, frozen=True, tag=True):
    """The image is found; nothing of its layers was fetched."""

    digest: str


class Decision(msgspec.Struct, frozen=True):
    """After Resolved."""

    goes_on: bool


class Uncompiled(msgspec.Struct, frozen=True, tag=True):
    """The file is written, and has sources without bytecode. The process is stopped until the answer; then bytecode is added
    behind the data that is there, and the metadata is written anew."""

    env: tuple[str, ...]
    """The image's environment."""
    jobs: tuple[CompileJob, ...]

    @property
    def sources(self) -> int:
        return sum(job.sources for job in self.jobs)


class Compiled(msgspec.Struct, frozen=True):
    """After Uncompiled."""

    batches: tuple[CompiledBatch, ...] = ()
    reason: str = ""
    """Why some are missing; empty: all were asked for."""


class Imported(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The file is written and synced."""

    digest: str
    config: ImageConfig
    facts: ImageFacts
    layers: int
    size_bytes: int
    """The size of the file system, in bytes."""
    metadata_chunks: int
    notes: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The end; nothing in the file is to be used."""

    kind: str
    """A key of FAILURES, or STORAGE_FULL; another: a bug, and the message is its traceback."""
    message: str


Message = Progress | Resolved | Uncompiled | Imported | Failed
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: msgspec.Struct) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Raises: msgspec.MsgspecError; also for a configuration over the limits, which `documents` has refused before."""
    message = _decoder.decode(line)
    if isinstance(message, Imported) and (excess := message.config.excess()):
        raise msgspec.ValidationError(f"a configuration with {excess}")
    return message
