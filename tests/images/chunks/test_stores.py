"""What every chunk store does: the same tests for a directory, our S3 server, and moto's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sockd.base.errors import ChunkMissing, StoreUnavailable, Tampered
from sockd.images.chunks.checking import THREADS, wrong_chunks
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk, decrypt, encrypt
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.upload import upload
from tests.support.images.chunk_memory import MemoryStore

SALT = bytes(32)


def made(text: bytes) -> tuple[Chunk, bytes]:
    return encrypt(text, SALT)


def test_a_chunk_is_stored_once_in_each_root(store: ChunkStore) -> None:
    chunk, data = made(b"plain" * 1000)
    assert not store.has("r1", chunk.name)
    assert store.put("r1", chunk.name, data)
    assert not store.put("r1", chunk.name, data)
    assert store.has("r1", chunk.name) and not store.has("r2", chunk.name)
    assert store.get("r1", chunk.name) == data
    with pytest.raises(ChunkMissing, match="root r2"):
        store.get("r2", chunk.name)
    assert store.put("r2", chunk.name, data)


def test_a_chunk_that_is_seen_to_be_wrong_is_replaced(store: ChunkStore) -> None:
    chunk, data = made(b"plain" * 1000)
    for wrong in (data[:-1], data + b"\0", b""):
        store.put("r1", chunk.name, wrong, replace=True)
        assert store.put("r1", chunk.name, data), len(wrong)
        assert store.get("r1", chunk.name) == data
        assert not store.put("r1", chunk.name, data)


def test_a_chunk_that_was_found_to_be_wrong_is_replaced(store: ChunkStore) -> None:
    chunk, data = made(b"plain" * 1000)
    store.put("r1", chunk.name, bytes(len(data)), replace=True)
    with pytest.raises(Tampered, match=rf"{chunk.name.hex()[:16]} in the chunk store .* {store.name} has other bytes"):
        store.get("r1", chunk.name)
    assert store.put("r1", chunk.name, data, replace=True)
    assert store.get("r1", chunk.name) == data


def test_chunks_that_are_missing_or_wrong_are_found_and_mended_by_the_next_upload(store: ChunkStore) -> None:
    pieces = [b"%032d" % number * (CHUNK_BYTES // 32) for number in range(20)] + [bytes(CHUNK_BYTES), b"the last"]
    stored = upload(pieces, store, root="r1", salt=SALT)
    manifest = Manifest("image", stored.size_bytes, "r1", stored.chunks)
    names = [chunk.name for chunk in stored.chunks if chunk]
    assert wrong_chunks(manifest, store) == frozenset()
    store.delete("r1", names[3])
    store.put("r1", names[7], bytes(CHUNK_BYTES), replace=True)
    store.put("r1", names[-1], b"the lasT", replace=True)
    wrong = wrong_chunks(manifest, store)
    assert wrong == {names[3], names[7], names[-1]}
    assert upload(pieces, store, root="r1", salt=SALT, wrong=wrong).new_chunks == 3
    assert wrong_chunks(manifest, store) == frozenset()


def test_names_are_those_of_one_root(store: ChunkStore) -> None:
    chunks = [made(b"%032d" % number) for number in range(30)]
    for chunk, data in chunks:
        store.put("r1", chunk.name, data)
    store.put("r2", chunks[0][0].name, chunks[0][1])
    assert sorted(store.names("r1")) == sorted(chunk.name for chunk, _ in chunks)
    assert list(store.names("r2")) == [chunks[0][0].name]
    assert list(store.names("r3")) == []


def test_a_deleted_chunk_is_gone_from_its_root_alone(store: ChunkStore) -> None:
    chunk, data = made(b"x")
    store.put("r1", chunk.name, data)
    store.put("r2", chunk.name, data)
    store.delete("r1", chunk.name)
    store.delete("r1", chunk.name)
    assert not store.has("r1", chunk.name) and store.get("r2", chunk.name) == data


def test_a_copied_chunk_outlives_its_origin(store: ChunkStore) -> None:
    chunk, data = made(b"x" * 5000)
    store.put("r1", chunk.name, data)
    assert store.copy("r1", "r2", chunk.name)
    assert not store.copy("r1", "r2", chunk.name)
    store.delete("r1", chunk.name)
    assert store.get("r2", chunk.name) == data
    with pytest.raises(ChunkMissing):
        store.copy("r1", "r3", chunk.name)


def test_objects_are_replaced_listed_and_deleted(store: ChunkStore) -> None:
    assert store.get_object("manifests/r1/a") is None
    store.put_object("manifests/r1/a", b"1")
    store.put_object("manifests/r1/a", b"2")
    store.put_object("manifests/r1/b=c.d", b"")
    store.put_object("manifests/r10/c", b"3")
    found = store.get_object("manifests/r1/a")
    assert found and found.data == b"2"
    assert list(store.list_objects("manifests/r1/")) == ["manifests/r1/a", "manifests/r1/b=c.d"]
    assert len(list(store.list_objects(""))) == 3 and list(store.list_objects("none/")) == []
    store.delete_object("manifests/r1/a")
    store.delete_object("manifests/r1/a")
    assert store.get_object("manifests/r1/a") is None


def test_an_object_is_created_once_and_swapped_by_version(store: ChunkStore) -> None:
    assert store.create_object("roots", b"1")
    assert not store.create_object("roots", b"2")
    first = store.get_object("roots")
    assert first and first.data == b"1"
    assert store.swap_object("roots", b"2", first.version)
    assert not store.swap_object("roots", b"3", first.version)
    second = store.get_object("roots")
    assert second and second.data == b"2"
    store.delete_object("roots")
    assert not store.swap_object("roots", b"3", second.version)
    assert store.get_object("roots") is None


@pytest.mark.parametrize("service", ["directory", "s3", "memory"], indirect=True)  # moto compares and sets in two steps
def test_of_many_writers_that_compare_and_set_one_wins(store: ChunkStore) -> None:
    store.put_object("roots", b"0")
    found = store.get_object("roots")
    assert found
    start = threading.Barrier(8)

    def swap(number: int) -> bool:
        start.wait()
        return store.swap_object("roots", b"%d" % number, found.version)

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, ok in enumerate(pool.map(swap, range(1, 9)), 1) if ok]
    after = store.get_object("roots")
    assert after and [int(after.data)] == won


def test_threads_may_put_and_get_at_once(store: ChunkStore) -> None:
    chunks = [made(b"%d" % (number % 10) * 1000) for number in range(40)]

    def both(pair: tuple[Chunk, bytes]) -> bytes:
        store.put("r1", pair[0].name, pair[1])
        return store.get("r1", pair[0].name)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(both, chunks)) == [data for _, data in chunks]
    assert len(list(store.names("r1"))) == 10


def test_an_upload_puts_each_different_chunk_once(store: ChunkStore) -> None:
    pieces = [b"a" * CHUNK_BYTES, bytes(CHUNK_BYTES), b"b" * CHUNK_BYTES, b"a" * CHUNK_BYTES, b"c" * 4096]
    first = upload(pieces, store, root="r1", salt=SALT)
    assert first.size_bytes == 4 * CHUNK_BYTES + 4096 and first.chunks[1] is None
    assert first.chunks[0] == first.chunks[3]
    restored = [decrypt(store.get("r1", chunk.name), chunk.key) if chunk else None for chunk in first.chunks]
    assert [piece for piece in pieces if any(piece)] == [piece for piece in restored if piece]
    again = upload(pieces, store, root="r1", salt=SALT)
    assert again.chunks == first.chunks and again.new_chunks == again.new_bytes == 0


def test_a_failure_of_the_image_ends_an_upload(store: ChunkStore) -> None:
    def pieces() -> list[bytes]:
        raise EOFError("the layer ended early")

    with pytest.raises(EOFError):
        upload((piece for _ in range(2) for piece in pieces()), store, root="r1", salt=SALT)


class SilentStore(MemoryStore):
    """A store whose calls fail together, when as many are under way as there are threads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._together = threading.Barrier(THREADS)

    def get(self, root: str, name: bytes) -> bytes:
        self.calls += 1
        self._together.wait(60)
        raise StoreUnavailable(self.name, "it does not answer")

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        self.get(root, name)
        return True


def test_a_silent_store_is_waited_for_once_by_an_upload_and_by_a_check() -> None:
    pieces = [b"%032d" % number * (CHUNK_BYTES // 32) for number in range(4 * THREADS)]
    store = SilentStore()
    with pytest.raises(StoreUnavailable):
        upload(pieces, store, root="r1", salt=SALT)
    assert store.calls == THREADS
    chunks = tuple(made(piece)[0] for piece in pieces)
    with pytest.raises(StoreUnavailable):
        wrong_chunks(Manifest("image", len(pieces) * CHUNK_BYTES, "r1", chunks), store)
    assert store.calls == 2 * THREADS


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", ".hidden", "a/", "a b", "a\n"])
def test_a_key_that_is_none_is_refused(store: ChunkStore, key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        store.get_object(key)


def test_roots_names_and_prefixes_are_checked(store: ChunkStore) -> None:
    for root in ("", "..", "a/b", "R"):
        with pytest.raises(ValueError, match="root"):
            store.has(root, bytes(32))
    with pytest.raises(ValueError, match="name"):
        store.has("r1", b"short")
    with pytest.raises(ValueError, match="prefix"):
        list(store.list_objects("manifests"))
