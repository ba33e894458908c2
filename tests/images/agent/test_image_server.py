"""The server of images, with the test in the place of the kernel: whatever a read covers, its reply has the image's bytes."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

import pytest

from sockd.base.errors import ChunkMissing, SockdError
from sockd.images.agent import fuse_messages as fuse
from sockd.images.agent.chunk_fetches import ChunkFetches
from sockd.images.agent.fuse_messages import Opcode
from sockd.images.agent.image_server import ImageServer
from sockd.images.agent.open_image import Contents, OpenImage
from sockd.images.agent.waiting_reads import WaitingReads
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk, encrypt

NODE = 2
BLOCK = 4096
PLAIN = random.Random(1).randbytes(2 * CHUNK_BYTES) + bytes(CHUNK_BYTES) + random.Random(2).randbytes(5 * BLOCK)
"""Two chunks of data, one of zeros, which is not stored, and one that is shorter."""
STALL_S = 10.0


class Chunks:
    """A `ChunkSource` with all chunks, of which only some are local."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        self.stored = stored
        self.local = dict(stored)

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        data = self.local.get(name)
        return None if data is None else data[offset : offset + size]

    def has(self, name: bytes) -> bool:
        return name in self.local

    def has_room(self) -> bool:
        return True

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        raise AssertionError("there are no nodes")

    def fetch(self, root: str, name: bytes) -> bytes:
        if name not in self.stored:
            raise ChunkMissing("of this test", root, name)
        return self.stored[name]

    def counters(self) -> dict[str, float]:
        return {}


class Kernel:
    """The other end of the connection, and what the server has reported."""

    def __init__(self, device: socket.socket, server: ImageServer, chunks: Chunks, reports: list[SockdError]) -> None:
        self._device = device
        self._unique = 0
        self.server = server
        self.chunks = chunks
        self.reports = reports

    def read(self, offset: int, size: int, node: int = NODE) -> tuple[int, bytes]:
        """(errno or 0, bytes)."""
        return self.ask(Opcode.READ, node, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0))

    def ask(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        self._unique += 2
        self._device.send(fuse.request(opcode, self._unique, node, body))
        unique, number, result = fuse.decode_reply(self._device.recv(4 << 20))
        assert unique == self._unique
        return number, result


def readv(device: int, buffers: list[bytearray], *, real: Callable[[int, list[bytearray]], int] = os.readv) -> int:
    """The end of a socket, as the one of /dev/fuse."""
    size = real(device, buffers)
    if not size:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return size


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setattr(os, "readv", readv)
    stored: dict[bytes, bytes] = {}
    table: list[Chunk | None] = []
    for start in range(0, len(PLAIN), CHUNK_BYTES):
        plain = PLAIN[start : start + CHUNK_BYTES]
        chunk, ciphertext = encrypt(plain, bytes(32))
        table.append(chunk if any(plain) else None)
        if any(plain):
            stored[chunk.name] = ciphertext
    chunks = Chunks(stored)
    reports: list[SockdError] = []
    with ExitStack() as stack:
        fetches = stack.enter_context(closing(ChunkFetches(chunks, prefetches=1, outage_s=0)))
        reads = stack.enter_context(
            closing(WaitingReads("s3://b/", STALL_S, lambda: 0.0, lambda _, error: reports.append(error)))
        )
        server = ImageServer(chunks, fetches, reads, lambda _, error: reports.append(error))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (ours, theirs):
            stack.enter_context(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        server.add(OpenImage("image", NODE, len(PLAIN), Contents("root", tuple(table))))
        server.serve([theirs.fileno()])
        stack.callback(server.join)  # before its descriptor is closed
        stack.callback(ours.shutdown, socket.SHUT_RDWR)
        yield Kernel(ours, server, chunks, reports)


READS = [
    (0, BLOCK),
    (5 * BLOCK, 32 * BLOCK),
    (100, 50),
    (CHUNK_BYTES - BLOCK, BLOCK),
    (CHUNK_BYTES - BLOCK, 2 * BLOCK),
    (0, CHUNK_BYTES),
    (2 * CHUNK_BYTES - 7, 20),
    (2 * CHUNK_BYTES + BLOCK, BLOCK),
    (3 * CHUNK_BYTES - BLOCK, 2 * BLOCK),
    (len(PLAIN) - BLOCK, BLOCK),
    (len(PLAIN) - BLOCK, 2 * BLOCK),
    (len(PLAIN) - 2 * BLOCK, CHUNK_BYTES),
    (len(PLAIN), BLOCK),
    (len(PLAIN) + CHUNK_BYTES, BLOCK),
    (4 * CHUNK_BYTES - BLOCK, BLOCK),
    (BLOCK, 0),
]
"""Within a chunk, at its borders, across them, zeros, at the end and beyond it."""


@pytest.mark.parametrize(("offset", "size"), READS)
def test_a_read_has_the_bytes_of_the_image(kernel: Kernel, offset: int, size: int) -> None:
    for _ in range(2):
        assert kernel.read(offset, size) == (0, PLAIN[offset : offset + size])
    assert kernel.server.counts["reads"] == 2 and not kernel.server.counts["reads_waited"]


@pytest.mark.parametrize(("offset", "size"), READS)
def test_a_read_waits_for_chunks_that_are_not_local(kernel: Kernel, offset: int, size: int) -> None:
    kernel.chunks.local.clear()
    assert kernel.read(offset, size) == (0, PLAIN[offset : offset + size])
    has_data = bool(PLAIN[offset : offset + size].strip(b"\0"))
    assert kernel.server.counts["reads_waited"] == has_data


def test_a_read_of_a_chunk_that_is_nowhere_fails_and_others_do_not(kernel: Kernel) -> None:
    kernel.chunks.local.clear()
    kernel.chunks.stored.pop(next(iter(kernel.chunks.stored)))
    assert kernel.read(0, BLOCK) == (errno.EIO, b"")
    assert kernel.read(CHUNK_BYTES - BLOCK, 2 * BLOCK) == (errno.EIO, b"")
    assert {type(error) for error in kernel.reports} == {ChunkMissing}
    assert kernel.read(CHUNK_BYTES, BLOCK) == (0, PLAIN[CHUNK_BYTES : CHUNK_BYTES + BLOCK])


def test_blocks_and_first_uses_of_reads_are_recorded(kernel: Kernel) -> None:
    kernel.read(CHUNK_BYTES + 2 * BLOCK, BLOCK)
    kernel.read(CHUNK_BYTES - BLOCK, 2 * BLOCK)
    image = kernel.server.image("image")
    assert image is not None and list(image.order) == [1, 0]
    assert image.blocks == {0: 1 << 127, 1: 0b101}


def test_a_read_of_an_image_that_was_removed_is_stale(kernel: Kernel) -> None:
    kernel.server.remove("image")
    assert kernel.read(0, BLOCK) == (errno.ESTALE, b"")


def test_a_bug_fails_its_request_and_no_other(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(kernel.chunks, "read", None)
        assert kernel.read(0, BLOCK) == (errno.EIO, b"")
    assert kernel.server.counts["failed_bugs"] == 1 and "NoneType" in kernel.reports[0].message
    assert kernel.read(0, BLOCK) == (0, PLAIN[:BLOCK])


def test_what_the_server_does_not_have_is_not_implemented(kernel: Kernel) -> None:
    assert kernel.ask(Opcode.ACCESS, NODE, bytes(8)) == (errno.ENOSYS, b"")
    assert kernel.ask(Opcode.READ, NODE, bytes(8)) == (errno.ENOSYS, b"")
