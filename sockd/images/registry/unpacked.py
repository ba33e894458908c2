"""The layers of an image, uncompressed, in temporary files without names: read once, written once, then read at any offset.

Owns the files, which the kernel frees with their last descriptor: nothing is left of a process that is killed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

from sockd.base.errors import BadImage, ImageTooLarge
from sockd.images.registry.decompression import decompressed
from sockd.images.registry.digests import Readable
from sockd.images.registry.image import Layer, Source
from sockd.images.registry.limits import RATIO_FREE_BYTES, Limits

OUTPUT_BYTES = 1 << 20
PARALLEL = 3
"""Layers that are fetched at once. zlib and hashlib work without the interpreter's lock."""

LayerProgress = Callable[[int, int], None]
"""Called with (layer, uncompressed bytes so far) from several threads."""


class UnpackedLayers:
    """The uncompressed layers by number, and one file more for what tar files cannot hold as it is: expanded sparse files.
    An instance is the `LayerData` of its image's FileTree."""

    def __init__(self, fds: list[int], labels: Sequence[str]) -> None:
        self._fds = fds
        """Descriptors of the layers, and of the additional file."""
        self.labels = tuple(labels)
        """What errors call the layers."""

    @classmethod
    def fetch(
        cls,
        source: Source,
        layers: Sequence[Layer],
        directory: str,
        limits: Limits,
        progress: LayerProgress = lambda layer, size: None,
    ) -> UnpackedLayers:
        """Read all layers of `source`, check both digests of each, and write them to files in `directory`.

        Raises: BadImage, ImageTooLarge, RegistryUnavailable; OSError of the directory's disk."""
        labels = [f"layer {number} ({layer.diff_id[:19]})" for number, layer in enumerate(layers, 1)]
        unpacked = cls([], labels)
        try:
            for _ in range(len(layers) + 1):
                unpacked._fds.append(_nameless_file(directory))
            budget = _Budget(limits.max_bytes)
            with ThreadPoolExecutor(PARALLEL, "layers") as threads:
                tasks = [
                    threads.submit(
                        _Fetch(source, layer, number, labels[number], unpacked._fds[number]).run,
                        limits,
                        budget,
                        progress,
                    )
                    for number, layer in enumerate(layers)
                ]
                done, pending = wait(tasks, return_when=FIRST_EXCEPTION)
                for task in pending:
                    task.cancel()
                if pending:
                    budget.stop()
            for task in done:
                task.result()
        except BaseException:
            unpacked.close()
            raise
        return unpacked

    @property
    def count(self) -> int:
        return len(self.labels)

    def size_bytes(self, layer: int) -> int:
        return os.fstat(self._fds[layer]).st_size

    def read_up_to(self, layer: int, offset: int, size: int) -> bytes:
        """Fewer bytes at the end of the layer."""
        return os.pread(self._fds[layer], size, offset)

    def read(self, layer: int, offset: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises: OSError, EOFError."""
        data = os.pread(self._fds[layer], size, offset)
        while len(data) < size:  # a read of more than 2 GB, or of a file that somebody has truncated
            more = os.pread(self._fds[layer], size - len(data), offset + len(data))
            if not more:
                raise EOFError(f"{size} bytes at {offset} of layer {layer}")
            data += more
        return data

    def expand(self, layer: int, offset: int, parts: Sequence[tuple[int, int]], size: int) -> tuple[int, int]:
        """Store a sparse file of `size` bytes with its holes; returns the layer and offset where it is now."""
        extra = self._fds[-1]
        start = -(-os.fstat(extra).st_size // 4096) * 4096
        os.ftruncate(extra, start + size)
        for at, length in parts:
            for done in range(0, length, OUTPUT_BYTES):
                data = self.read(layer, offset + done, min(OUTPUT_BYTES, length - done))
                os.pwrite(extra, data, start + at + done)
            offset += length
        return len(self._fds) - 1, start

    def append(self, data: bytes) -> tuple[int, int]:
        """Store a file that is in no layer; returns the layer and offset where it is now."""
        start = os.lseek(self._fds[-1], 0, os.SEEK_END)
        _write(self._fds[-1], data)
        return len(self._fds) - 1, start

    def close(self) -> None:
        """Free the files. Safe to call twice."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> UnpackedLayers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Budget:
    """Bytes that all layers together may still have."""

    def __init__(self, size_bytes: int) -> None:
        self._limit_bytes = size_bytes
        self._left_bytes = size_bytes
        self._lock = threading.Lock()
        self._is_stopped = False

    def stop(self) -> None:
        """Another layer has failed."""
        self._is_stopped = True

    def take(self, size_bytes: int) -> None:
        """Raises: ImageTooLarge."""
        with self._lock:
            self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise ImageTooLarge(
                f"the image has more than {self._limit_bytes >> 20} MB uncompressed (images.max_image_mb)"
            )
        if self._is_stopped:
            raise BadImage("another layer was refused")


def _nameless_file(directory: str) -> int:
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One layer on its way to its file."""

    source: Source
    layer: Layer
    number: int
    label: str
    fd: int

    def run(self, limits: Limits, budget: _Budget, progress: LayerProgress) -> None:
        algorithm, _, expected = self.layer.diff_id.partition(":")
        found = hashlib.new(algorithm)
        size_bytes = 0
        with closing(self.source.open_layer(self.layer)) as stored:
            counted = _Counted(stored)
            tar = decompressed(counted, self.label)
            while data := tar.read(OUTPUT_BYTES):
                budget.take(len(data))
                size_bytes += len(data)
                if size_bytes > RATIO_FREE_BYTES + limits.max_ratio * counted.read_bytes:
                    raise ImageTooLarge(
                        f"{self.label} expands to more than {limits.max_ratio} times its compressed size"
                    )
                found.update(data)
                _write(self.fd, data)
                progress(self.number, size_bytes)
        if found.hexdigest() != expected:
            raise BadImage(
                f"{self.label} does not have the digest in the image's configuration, but {found.hexdigest()}"
            )


class _Counted:
    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.read_bytes = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self.read_bytes += len(data)
        return data

    def close(self) -> None:
        self._stream.close()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
