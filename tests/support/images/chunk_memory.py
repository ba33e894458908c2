"""A chunk store in memory, for tests of many interleavings; it passes the same tests as the real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from sockd.base.errors import ChunkMissing, Tampered
from sockd.images.chunks.chunk import is_named
from sockd.images.chunks.store import StoredObject, check_key, check_name, check_prefix, check_root


class MemoryStore:
    """Each call is atomic."""

    name = "in memory"
    keeps_bytes = False

    def __init__(self) -> None:
        self.chunks: dict[str, dict[bytes, bytes]] = {}
        self.objects: dict[str, StoredObject] = {}
        self._writes = 0
        self._lock = threading.Lock()

    @property
    def heard_s(self) -> float:
        return time.monotonic()

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        check_name(name)
        with self._lock:
            chunks = self.chunks.setdefault(check_root(root), {})
            is_new = replace or chunks.get(name) != data
            chunks[name] = data
            return is_new

    def get(self, root: str, name: bytes) -> bytes:
        check_name(name)
        with self._lock:
            data = self.chunks.get(check_root(root), {}).get(name)
        if data is None:
            raise ChunkMissing(self.name, root, name)
        if not is_named(name, data):
            raise Tampered.chunk(self.name, name)
        return data

    def has(self, root: str, name: bytes) -> bool:
        check_name(name)
        with self._lock:
            return name in self.chunks.get(check_root(root), {})

    def names(self, root: str) -> Iterator[bytes]:
        with self._lock:
            found = list(self.chunks.get(check_root(root), {}))
        yield from found

    def delete(self, root: str, name: bytes) -> None:
        check_name(name)
        with self._lock:
            self.chunks.get(check_root(root), {}).pop(name, None)

    def copy(self, source: str, target: str, name: bytes) -> bool:
        with self._lock:
            data = self.chunks.get(check_root(source), {}).get(name)
        if data is None:
            raise ChunkMissing(self.name, source, name)
        return self.put(target, name, data)

    def get_object(self, key: str) -> StoredObject | None:
        with self._lock:
            return self.objects.get(check_key(key))

    def put_object(self, key: str, data: bytes) -> None:
        with self._lock:
            self._write(key, data)

    def create_object(self, key: str, data: bytes) -> bool:
        with self._lock:
            if check_key(key) in self.objects:
                return False
            self._write(key, data)
            return True

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        with self._lock:
            found = self.objects.get(check_key(key))
            if found is None or found.version != version:
                return False
            self._write(key, data)
            return True

    def list_objects(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._lock:
            found = sorted(key for key in self.objects if key.startswith(prefix))
        yield from found

    def delete_object(self, key: str) -> None:
        with self._lock:
            self.objects.pop(check_key(key), None)

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, key: str, data: bytes) -> None:
        self._writes += 1
        self.objects[check_key(key)] = StoredObject(data, str(self._writes))
