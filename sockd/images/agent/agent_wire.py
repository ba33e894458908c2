"""The control socket between the daemon and its agent: SOCK_SEQPACKET, one message of JSON each, descriptors attached.

    daemon                                     agent
      Setup + slab, store, devices      →      (once, first)
      Open  + chunk table, startup data →      Done
      Serve                             →      Done; requests of FUSE are read from now on
      Write + chunk table, file         →      Done; the file is the image, synced
      AskUse + file                     →      UseIs; the file has the chunk's ciphertext
      Filled, Started, Close, UseNodes  →      Done
      AskProfile, AskCounters           →      ProfileIs, CountersAre
      Ping                              →      Done
                                        ←      Trouble, unasked

Each message of the daemon's but Setup has a number, which its answer repeats. The agent ends with the socket.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from sockd.base import errors
from sockd.base.errors import SockdError
from sockd.images.chunks.chunk import KEY_BYTES, NAME_BYTES, Chunk
from sockd.images.chunks.manifest import Manifest, chunk_count
from sockd.images.chunks.store_settings import StoreSettings
from sockd.linux import descriptor_passing

MOST_MESSAGE_BYTES = 128 << 10
MOST_DESCRIPTORS = 64
REPORT_PERIOD_S = 0.1
"""Least time between two `Trouble`s of one image. Failures in between are for the same reason, most likely."""
_T = TypeVar("_T")
_TABLE = struct.Struct("=Q")
_ENTRY_BYTES = NAME_BYTES + KEY_BYTES
_ZERO_CHUNK = bytes(_ENTRY_BYTES)


class BadAgentMessage(ValueError):
    """The peer sent what this module does not describe."""


class SourceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where an agent has chunks from."""

    store: StoreSettings
    l1_bytes: int
    """The size of the L1 cache's file."""
    nodes: dict[str, str] = {}
    """Cache nodes: ADDRESS:PORT by name."""
    token: str = ""
    """The token of the nodes."""

    def __repr__(self) -> str:
        return f"SourceSettings({self.store!r}, l1_bytes={self.l1_bytes}, nodes={self.nodes})"


class Setup(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """How the agent works. Descriptors: the L1 slab, the store's directory if it has one, then those of /dev/fuse."""

    source: SourceSettings
    has_directory: bool
    prefetches: int
    stall_s: float
    fill_bytes_s: int


class Open(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Serve an image; one that is open gets these chunks, whose plaintext is the same. Descriptors: its chunk table, and its
    startup data if it has some. Done with Tampered: the startup data is refused, and the image is served without it."""

    number: int
    image: str
    nodeid: int
    root: str
    first: tuple[int, ...]
    """Chunks that are prefetched now, in this order, unless the startup data has blocks of them."""
    has_profile: bool = False
    """Whether these, with the startup data, are what an earlier start has read."""
    filled: int = 0
    """So many bytes of the startup data are there."""


class Filled(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """More of the startup data of an image is there, unless it was closed, and perhaps opened again, meanwhile."""

    number: int
    image: str
    nodeid: int
    """As at its opening."""
    bytes: int
    """In all."""


class Started(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The start of an image is over: release its startup data."""

    number: int
    image: str
    nodeid: int
    """As at its opening."""


class Close(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Serve an image no more."""

    number: int
    image: str


class Serve(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Answer requests of FUSE from now on."""

    number: int


class Write(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Write a whole image. Descriptors: its chunk table, the file."""

    number: int
    image: str
    root: str


class AskProfile(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask in which order the chunks of an image were used first."""

    number: int
    image: str


class AskUse(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask which blocks of a chunk were read. Descriptor: a file for the chunk's ciphertext."""

    number: int
    image: str
    chunk: int


class AskCounters(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask for all counters."""

    number: int


class UseNodes(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Have chunks from other cache nodes from now on; reads under way go on."""

    number: int
    nodes: dict[str, str]
    """As of SourceSettings."""


class Ping(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Ask for an answer."""

    number: int


class Done(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The result of a request: done, or the reason why not."""

    number: int
    error_type: str = ""
    """Class of sockd.base.errors; empty: no error."""
    message: str = ""


class ProfileIs(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The answer to AskProfile."""

    number: int
    order: tuple[int, ...]


class UseIs(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The answer to AskUse."""

    number: int
    blocks: bytes
    """A bitmap as of startup data; empty: the chunk was not read."""
    has_chunk: bool
    """Whether the worker has the chunk, and its ciphertext was written."""


class CountersAre(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The answer to AskCounters."""

    number: int
    counters: dict[str, float]


class Trouble(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """Reads of an image have failed."""

    image: str
    error_type: str
    message: str


ToAgent = Setup | Open | Filled | Started | Close | Serve | Write | AskProfile | AskUse | AskCounters | UseNodes | Ping
Answer = Done | ProfileIs | UseIs | CountersAre
ToDaemon = Answer | Trouble
_to_agent: msgspec.json.Decoder[ToAgent] = msgspec.json.Decoder(ToAgent)
_to_daemon: msgspec.json.Decoder[ToDaemon] = msgspec.json.Decoder(ToDaemon)


def encode(message: ToAgent | ToDaemon) -> bytes:
    """Raises: BadAgentMessage for one that is too long."""
    data = msgspec.json.encode(message)
    if len(data) > MOST_MESSAGE_BYTES:
        raise BadAgentMessage(f"{type(message).__name__} has {len(data)} bytes")
    return data


def decode_to_agent(data: bytes) -> ToAgent:
    """Raises: BadAgentMessage."""
    return _decoded(_to_agent, data)


def decode_to_daemon(data: bytes) -> ToDaemon:
    """Raises: BadAgentMessage."""
    return _decoded(_to_daemon, data)


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BadAgentMessage(str(error)) from None


def send(wire: socket.socket, message: ToAgent | ToDaemon, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """One message. Raises: OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    wire.sendmsg([encode(message)], rights, flags)


def receive_with_descriptors(wire: socket.socket, stack: ExitStack) -> tuple[bytes, list[int]]:
    """One message with its descriptors, which the stack closes; none: the other end is closed.

    Raises: OSError; BadAgentMessage for one that was cut."""
    try:
        data, descriptors = descriptor_passing.receive(wire, MOST_MESSAGE_BYTES + 1, MOST_DESCRIPTORS)
    except ConnectionResetError:
        return b"", []  # it was closed before all was read
    except ValueError as error:
        raise BadAgentMessage(str(error)) from None
    for each in descriptors:
        stack.callback(os.close, each)
    return data, descriptors


def error_of(error_type: str, message: str) -> SockdError:
    """The error that the agent has named, with its message."""
    kind = getattr(errors, error_type, SockdError)
    if not (isinstance(kind, type) and issubclass(kind, SockdError)):
        kind = SockdError
    error = kind.__new__(kind)
    SockdError.__init__(error, message)
    return error


def chunk_table(manifest: Manifest) -> bytes:
    """Size, names and keys of an image: too long for a message. In the byte order of the machine."""
    entries = [chunk.name + chunk.key if chunk else _ZERO_CHUNK for chunk in manifest.chunks]
    return _TABLE.pack(manifest.size_bytes) + b"".join(entries)


def parse_chunk_table(data: bytes) -> tuple[int, tuple[Chunk | None, ...]]:
    """(size of the image, its chunks). Raises: BadAgentMessage."""
    if len(data) < _TABLE.size:
        raise BadAgentMessage("a chunk table without a size")
    size_bytes = int(_TABLE.unpack_from(data)[0])
    if len(data) != _TABLE.size + chunk_count(size_bytes) * _ENTRY_BYTES:
        raise BadAgentMessage(f"a chunk table of {len(data)} bytes for an image of {size_bytes}")
    chunks: list[Chunk | None] = []
    for at in range(_TABLE.size, len(data), _ENTRY_BYTES):
        name, key = data[at : at + NAME_BYTES], data[at + NAME_BYTES : at + _ENTRY_BYTES]
        chunks.append(Chunk(name, key) if name != _ZERO_CHUNK[:NAME_BYTES] else None)
    return size_bytes, tuple(chunks)
