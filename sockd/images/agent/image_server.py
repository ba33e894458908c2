"""The images as files of one FUSE connection: threads that read requests and answer them.

Owns the threads, not the descriptors of /dev/fuse. A read of chunks that this worker has is answered by the thread that
received it; that waits, for a second at most, for startup data that is being decrypted. For other chunks a read waits in
`ChunkFetches`, without a thread. Bytes are served from verified chunks only: the error of a chunk is the error of the read
(EIO), and is reported.

Nodes: the root is 1, an image has the number that the daemon chose, so that nothing is lost with this process.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from sockd.base.errors import SockdError
from sockd.images.agent import fuse_messages as fuse
from sockd.images.agent.chunk_fetches import ChunkFetches, ChunkSource, Urgency
from sockd.images.agent.fuse_messages import Attributes, Opcode, OpenFlag, Request
from sockd.images.agent.open_image import Contents, OpenImage, Span
from sockd.images.agent.waiting_reads import WaitingRead, WaitingReads
from sockd.images.chunks.chunk import CHUNK_BYTES, decrypt
from sockd.images.chunks.part_decryptor import PartDecryptor

BUFFER_BYTES = 2 * fuse.MIN_READ_BUFFER
_ROOT = Attributes(fuse.ROOT_ID, stat.S_IFDIR | 0o500, links=2)
_GONE = (errno.ENODEV, errno.ECONNABORTED)
"""The connection has ended: unmounted, or all descriptors closed."""
_AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""The request was taken back before it was copied."""
Report = Callable[[str, SockdError], None]
"""(image, error): a read of the image has failed."""


class ImageServer:
    """`serve` starts the threads; they end with the connection."""

    def __init__(self, source: ChunkSource, fetches: ChunkFetches, reads: WaitingReads, report: Report) -> None:
        self._source = source
        self._fetches = fetches
        self._reads = reads
        self._report = report
        self._images: dict[int, OpenImage] = {}
        self._by_name: dict[bytes, OpenImage] = {}
        self._threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()
        """Approximate: threads add to it without a lock."""

    def add(self, image: OpenImage) -> None:
        """Serve an image under its name. Raises: KeyError: the number is in use."""
        if image.nodeid in self._images or image.nodeid == fuse.ROOT_ID:
            raise KeyError(image.nodeid)
        self._images[image.nodeid] = image
        self._by_name[image.image.encode()] = image

    def remove(self, image: str) -> None:
        """Serve it no more; its reads fail from now on."""
        removed = self._by_name.pop(image.encode(), None)
        if removed is not None:
            del self._images[removed.nodeid]

    def image(self, image: str) -> OpenImage | None:
        return self._by_name.get(image.encode())

    def images(self) -> list[OpenImage]:
        return list(self._images.values())

    def serve(self, devices: Sequence[int]) -> None:
        """Answer requests, one thread for each descriptor."""
        for device in devices:
            thread = threading.Thread(target=self._serve, args=(device,), name=f"fuse {device}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until the connection has ended."""
        for thread in self._threads:
            thread.join()

    def _serve(self, device: int) -> None:
        buffer = bytearray(BUFFER_BYTES)
        view = memoryview(buffer)
        buffers = [buffer]
        decryptor = PartDecryptor()
        while True:
            try:
                size = os.readv(device, buffers)
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                if error.errno in _GONE:
                    return
                raise
            read = fuse.decode_read(buffer, size)
            if read is not None:
                try:
                    self._read(device, decryptor, *read)
                except Exception as error:
                    self._failed(device, read[0], error)
            else:
                request = fuse.decode(view[:size])
                try:
                    self._answer(device, request)
                except Exception as error:
                    self._failed(device, request.unique, error)

    def _failed(self, device: int, unique: int, error: Exception) -> None:
        """A bug: this request fails, the others are served."""
        self._report("", SockdError(f"a request could not be answered: {error!r}"))
        self.counts["failed_bugs"] += 1
        _write(device, fuse.error(unique, errno.EIO))

    def _answer(self, device: int, request: Request) -> None:
        """Everything but READ."""
        if request.opcode == Opcode.INTERRUPT:
            self._reads.interrupt(fuse.decode_interrupt(request.body))
        elif request.opcode not in fuse.WITHOUT_REPLY:
            answer = self._answers.get(request.opcode)
            number, result = (errno.ENOSYS, b"") if answer is None else answer(self, request)
            _write(device, fuse.error(request.unique, number) if number else fuse.reply(request.unique, result))

    def _lookup(self, request: Request) -> tuple[int, bytes]:
        image = self._by_name.get(fuse.decode_name(request.body))
        if image is None or request.nodeid != fuse.ROOT_ID:
            return errno.ENOENT, b""
        return 0, fuse.entry_out(_attributes(image))

    def _getattr(self, request: Request) -> tuple[int, bytes]:
        if request.nodeid == fuse.ROOT_ID:
            return 0, fuse.attr_out(_ROOT)
        image = self._images.get(request.nodeid)
        return (0, fuse.attr_out(_attributes(image))) if image else (errno.ESTALE, b"")

    def _open(self, request: Request) -> tuple[int, bytes]:
        if request.nodeid not in self._images:
            return errno.ESTALE, b""
        # EROFS caches what it has read: a second copy in FUSE's page cache would only take memory.
        return 0, fuse.open_out(OpenFlag.DIRECT_IO | OpenFlag.NOFLUSH)

    def _release(self, request: Request) -> tuple[int, bytes]:
        return 0, b""

    def _statfs(self, request: Request) -> tuple[int, bytes]:
        images = self.images()
        return 0, fuse.statfs_out(sum(image.size_bytes for image in images), len(images))

    _answers: dict[int, Callable[[ImageServer, Request], tuple[int, bytes]]] = {  # noqa: RUF012
        Opcode.LOOKUP: _lookup,
        Opcode.GETATTR: _getattr,
        Opcode.OPEN: _open,
        Opcode.RELEASE: _release,
        Opcode.STATFS: _statfs,
    }

    def _read(self, device: int, decryptor: PartDecryptor, unique: int, nodeid: int, offset: int, size: int) -> None:
        image = self._images.get(nodeid)
        if image is None:
            _write(device, fuse.error(unique, errno.ESTALE))
            return
        self.counts["reads"] += 1
        contents = image.contents
        number, within = divmod(offset, CHUNK_BYTES)
        if 0 < size <= CHUNK_BYTES - within and offset + size <= image.size_bytes:
            # One chunk has all of it, as of most reads: without the lists that others need (experiment 16).
            piece = self._local(image, contents, decryptor, number, within, size)
            if piece is not None:
                _write(device, fuse.reply_header(unique, size), piece)
            else:
                self._wait(device, unique, image, contents, [Span(number, within, size)], [None])
            return
        spans = image.spans(offset, size)
        pieces = [self._local(image, contents, decryptor, *span) for span in spans]
        if None in pieces:
            self._wait(device, unique, image, contents, spans, pieces)
        else:
            _write(device, *_read_reply(unique, pieces))  # type: ignore[arg-type]

    def _local(
        self, image: OpenImage, contents: Contents, decryptor: PartDecryptor, number: int, offset: int, size: int
    ) -> bytes | None:
        """The plaintext of a part of a chunk, if the startup data or this worker's caches have it."""
        image.record(number, offset, size)
        # Without use of a chunk: none is fetched ahead.
        if (startup := image.startup) is not None and (piece := startup.read(number, offset, size)) is not None:
            self.counts["startup_reads"] += 1
            return piece
        chunk = contents.chunks[number]
        if not image.is_used(number):
            self._use(image, number)
        if chunk is None:
            return bytes(size)
        part = self._source.read(chunk.name, offset, size)
        return None if part is None else decryptor.decrypt(part, chunk.key, offset)

    def _use(self, image: OpenImage, index: int) -> None:
        for ahead in image.use(index):
            self.prefetch(image, ahead, Urgency.READ_AHEAD)

    def prefetch(self, image: OpenImage, index: int, urgency: Urgency) -> None:
        """Fetch a chunk that no read waits for, unless this worker has it."""
        contents = image.contents
        chunk = contents.chunks[index]
        if chunk is not None and not self._source.has(chunk.name):
            self._fetches.want(contents.root, chunk.name, urgency)

    def _wait(
        self,
        device: int,
        unique: int,
        image: OpenImage,
        contents: Contents,
        spans: list[Span],
        pieces: list[bytes | None],
    ) -> None:
        """Answer when the pieces are there that are missing."""
        self.counts["reads_waited"] += 1
        missing = [place for place, piece in enumerate(pieces) if piece is None]
        read = WaitingRead(device, unique, image.image, pieces, len(missing))
        self._reads.add(read)
        for place in missing:
            span = spans[place]
            chunk = contents.chunks[span.number]
            assert chunk is not None

            def arrived(
                data: bytes | None,
                error: SockdError | None,
                place: int = place,
                span: Span = span,
                key: bytes = chunk.key,
            ) -> None:
                if data is None:
                    self._reads.fail(read, error or SockdError("a chunk is missing"))
                elif read.fill(place, decrypt(data, key, span.offset, span.size)) and self._reads.take(read):
                    _write(read.device, *_read_reply(read.unique, read.pieces))  # type: ignore[arg-type]

            self._fetches.want(contents.root, chunk.name, Urgency.READ, arrived)


def _attributes(image: OpenImage) -> Attributes:
    return Attributes(image.nodeid, stat.S_IFREG | 0o400, image.size_bytes)


def _read_reply(unique: int, pieces: list[bytes]) -> list[bytes]:
    return [fuse.reply_header(unique, sum(map(len, pieces))), *pieces]


def _write(device: int, *parts: bytes) -> None:
    """Reply. ENOENT: the request is gone, or was sent again to another; the end of the connection ends the threads."""
    try:
        os.writev(device, parts)
    except OSError as error:
        if error.errno not in (errno.ENOENT, *_GONE):
            raise
