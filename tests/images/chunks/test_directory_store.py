"""The directory store: kills, power cuts, full disks, damage, and processes that have only a descriptor."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sockd.base.errors import ChunkStoreFailed, ChunkUnreadable, StoreFull, StoreUnavailable, Tampered
from sockd.images.chunks.checking import wrong_chunks
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk, encrypt
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.manifest import Manifest
from sockd.linux import mounts, syscalls
from sockd.linux.syscalls import MountFlag
from tests.support.images.chunked_images import flip_bit

# Puts chunks until it is killed, and says when it has begun.
WRITER = """
import os, sys
from pathlib import Path
from sockd.images.chunks.chunk import encrypt
from sockd.images.chunks.directory_store import DirectoryStore
store = DirectoryStore.create(Path(sys.argv[1]))
number = 0
while True:
    chunk, data = encrypt(b"%032d" % number * 16384, bytes(32))
    store.put("r1", chunk.name, data)
    if number == 3:
        print("begun", flush=True)
    number += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


@pytest.fixture
def store(path: Path) -> Iterator[DirectoryStore]:
    with closing(DirectoryStore.create(path)) as store:
        yield store


def put(store: DirectoryStore, text: bytes = b"plain" * 100) -> Chunk:
    chunk, data = encrypt(text, bytes(32))
    store.put("r1", chunk.name, data)
    return chunk


def put_many(store: DirectoryStore, count: int, times: int) -> None:
    for number in range(count):
        put(store, b"%032d" % number * times)


@contextmanager
def mounted_tmpfs(path: Path, options: str) -> Iterator[None]:
    syscalls.mount("tmpfs", str(path), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, options)
    try:
        yield
    finally:
        mounts.umount_tree(str(path))


def file_of(path: Path, chunk: Chunk) -> Path:
    return path / "roots/r1" / chunk.name.hex()[:2] / chunk.name.hex()


def test_a_chunk_that_the_disk_has_changed_is_replaced_for_new_readers(store: DirectoryStore, path: Path) -> None:
    chunk = put(store)
    assert store.copy("r1", "r2", chunk.name)
    file = file_of(path, chunk)
    flip_bit(file, 77)
    with open(file, "rb") as reader:
        put(store)
        assert store.get("r1", chunk.name) == file.read_bytes() != reader.read()
    with pytest.raises(Tampered):
        store.get("r2", chunk.name)  # the same file until now; an upload there mends it


def test_a_killed_writer_leaves_whole_chunks_and_nothing_that_stays(store: DirectoryStore, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout and writer.stdout.readline() == "begun\n"
        writer.send_signal(signal.SIGKILL)
    names = list(store.names("r1"))
    assert len(names) >= 4
    for name in names:
        assert len(store.get("r1", name)) == CHUNK_BYTES
    store.recover()
    assert os.listdir(path / "tmp") == []


def test_recovery_leaves_files_that_are_being_written(store: DirectoryStore, path: Path) -> None:
    (path / "tmp/left-behind").write_bytes(b"half")
    with store._files.written(b"whole") as written:
        store.recover()
        assert os.listdir(path / "tmp") == [os.path.basename(written)]
    assert os.listdir(path / "tmp") == []


def test_writers_go_on_next_to_recoveries(store: DirectoryStore) -> None:
    stop = threading.Event()

    def recover() -> None:
        while not stop.is_set():
            store.recover()

    thread = threading.Thread(target=recover)
    thread.start()
    try:
        chunks = [put(store, b"%032d" % number) for number in range(200)]
    finally:
        stop.set()
        thread.join()
    assert all(store.has("r1", chunk.name) for chunk in chunks)


def test_puts_go_on_next_to_deletions_of_the_same_directory(store: DirectoryStore) -> None:
    chunks = [encrypt(b"%032d" % number, bytes(32)) for number in range(8)]
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for chunk, _ in chunks:
                store.delete("r1", chunk.name)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(50):
            for chunk, data in chunks:
                store.put("r1", chunk.name, data)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("size", [0, 100])
def test_a_chunk_that_a_power_cut_left_short_is_replaced(store: DirectoryStore, path: Path, size: int) -> None:
    chunk = put(store)
    os.truncate(file_of(path, chunk), size)
    with pytest.raises(Tampered):
        store.get("r1", chunk.name)
    put(store)
    assert len(store.get("r1", chunk.name)) == 500


def test_each_changed_bit_of_a_chunk_on_the_disk_is_noticed(store: DirectoryStore, path: Path) -> None:
    chunk = put(store, b"plain")
    file = file_of(path, chunk)
    data = file.read_bytes()
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(Tampered):
            store.get("r1", chunk.name)


def test_files_that_are_too_large_are_not_read(store: DirectoryStore, path: Path) -> None:
    chunk = put(store, b"data")
    store.put_object("k", b"object")
    for file in (file_of(path, chunk), path / "objects" / "k"):
        os.truncate(file, 1 << 40)  # all holes; read whole, it is a MemoryError
    with pytest.raises(Tampered):
        store.get("r1", chunk.name)
    with pytest.raises(StoreUnavailable, match="more than 256 MB"):
        store.get_object("k")
    store.put_object("k", b"object")
    assert store.get_object("k") is not None


def make_fifo(path: Path) -> None:
    """Which nobody writes."""
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_fifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for_and_not_read(
    store: DirectoryStore, path: Path, make: Callable[[Path], None]
) -> None:
    chunk = put(store)
    store.put_object("k", b"object")
    for file in (file_of(path, chunk), path / "objects" / "k"):
        file.unlink()
        make(file)
    with pytest.raises(Tampered, match="something else where a file should be"):
        store.get("r1", chunk.name)
    with pytest.raises(Tampered, match="something else where a file should be"):
        store.get_object("k")


def test_a_fifo_in_the_place_of_a_chunk_is_replaced_and_one_in_tmp_is_removed(
    store: DirectoryStore, path: Path
) -> None:
    chunk = put(store)
    file_of(path, chunk).unlink()
    make_fifo(file_of(path, chunk))
    make_fifo(path / "tmp/left-behind")
    store.recover()
    assert os.listdir(path / "tmp") == []
    put(store)
    assert len(store.get("r1", chunk.name)) == 500


def make_full_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("of nobody")
    (path / "link").symlink_to("/")


def make_socket(path: Path) -> None:
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{directory}/{path.name}")  # a socket's own path is short
    finally:
        os.close(directory)


def make_closed(path: Path) -> None:
    path.touch(mode=0o600)


UNREADABLE: dict[str, tuple[Callable[[Path], None], type[ChunkStoreFailed]]] = {
    "EIO": (lambda path: path.symlink_to("/proc/self/mem"), ChunkUnreadable),
    "ELOOP": (lambda path: path.symlink_to(path.name), ChunkUnreadable),
    "ENXIO": (make_socket, ChunkUnreadable),
    "EACCES": (make_closed, ChunkUnreadable),
    "directory": (Path.mkdir, Tampered),
    "full directory": (make_full_directory, Tampered),
}
"""What cannot be read as a file of that name, and how a read of it fails. The first page of no process's memory is mapped."""


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_chunk_that_cannot_be_read_is_found_and_stored_again(store: DirectoryStore, path: Path, kind: str) -> None:
    chunk = put(store)
    make, error = UNREADABLE[kind]
    file_of(path, chunk).unlink()
    make(file_of(path, chunk))
    with pytest.raises(error):
        store.get("r1", chunk.name)
    assert wrong_chunks(Manifest("image", 500, "r1", (chunk,)), store) == {chunk.name}
    assert store.put("r1", chunk.name, encrypt(b"plain" * 100, bytes(32))[1], replace=True)
    assert len(store.get("r1", chunk.name)) == 500 and os.listdir(path / "tmp") == []
    assert wrong_chunks(Manifest("image", 500, "r1", (chunk,)), store) == frozenset()


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_chunk_that_cannot_be_read_is_replaced_by_another_upload(
    store: DirectoryStore, path: Path, kind: str
) -> None:
    chunk = put(store)
    file_of(path, chunk).unlink()
    UNREADABLE[kind][0](file_of(path, chunk))
    put(store)
    assert len(store.get("r1", chunk.name)) == 500


def test_directories_in_the_place_of_chunks_are_deleted_and_in_tmp_they_are_removed(
    store: DirectoryStore, path: Path
) -> None:
    chunk = put(store)
    file_of(path, chunk).unlink()
    make_full_directory(file_of(path, chunk))
    make_full_directory(path / "tmp/left-behind")
    store.delete("r1", chunk.name)
    store.recover()
    assert os.listdir(path / "tmp") == [] and not store.has("r1", chunk.name)


def test_all_may_read_what_is_stored_whatever_the_umask_is(store: DirectoryStore, path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert file_of(path, put(store)).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_the_log_says_that_a_lock_is_waited_for(
    store: DirectoryStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_object("key", b"data")
    caplog.set_level(logging.INFO)
    with open(path / "lock") as lock:
        assert os.fstat(lock.fileno()).st_mode & 0o777 == 0o600, "no other user may keep it"
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=store.put_object, args=("key", b"other"))
        waiting.start()
        while "holds the lock" not in caplog.text:
            assert waiting.is_alive()
    waiting.join()
    found = store.get_object("key")
    assert found is not None and found.data == b"other"


def test_a_directory_that_is_not_there_is_not_made(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file"):
        DirectoryStore.open(path)
    assert not path.exists()


def test_what_a_removed_directory_had_is_not_missing_but_unavailable(store: DirectoryStore, path: Path) -> None:
    chunk = put(store)
    shutil.rmtree(path)
    data = b"other" * 100
    uses: tuple[Callable[[], object], ...] = (
        lambda: store.get("r1", chunk.name),
        lambda: store.has("r1", chunk.name),
        lambda: list(store.names("r1")),
        lambda: list(store.list_objects("")),
        lambda: store.get_object("key"),
        lambda: store.create_object("key", data),
        lambda: store.put("r1", encrypt(data, bytes(32))[0].name, data),
        store.recover,
    )
    for use in uses:
        with pytest.raises(StoreUnavailable, match="its directory was removed"):
            use()
    assert not path.exists()


def test_a_store_that_was_emptied_takes_chunks_again(store: DirectoryStore, path: Path) -> None:
    for directory in path.iterdir():
        shutil.rmtree(directory)
    chunk = put(store)
    store.put_object("key", b"data")
    assert store.has("r1", chunk.name)


def test_a_copy_takes_no_room(store: DirectoryStore, path: Path) -> None:
    chunk = put(store)
    store.copy("r1", "r2", chunk.name)
    assert file_of(path, chunk).stat().st_nlink == 2


def test_a_process_that_has_only_a_descriptor_uses_the_store(store: DirectoryStore, path: Path) -> None:
    chunk = put(store)
    with closing(DirectoryStore(os.open(path, os.O_PATH | os.O_DIRECTORY))) as other:
        path.rename(path.with_name("elsewhere"))
        assert len(other.get("r1", chunk.name)) == 500
        other.put_object("profiles/a", b"x")
        assert list(other.list_objects("profiles/")) == ["profiles/a"]


@pytest.mark.root
def test_a_full_disk_is_an_error_of_its_own_and_leaves_what_was_there(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path, "size=2m"), closing(DirectoryStore.create(tmp_path / "chunks")) as store:
        first = put(store)
        with pytest.raises(StoreFull, match="is full"):
            put_many(store, 8, 16384)
        assert os.listdir(tmp_path / "chunks/tmp") == []
        assert len(store.get("r1", first.name)) == 500
        store.copy("r1", "r2", first.name)
        for name in list(store.names("r1")):
            store.delete("r1", name)
        put(store, b"a" * CHUNK_BYTES)


@pytest.mark.root
def test_no_more_inodes_are_a_full_disk(tmp_path: Path) -> None:
    with (
        mounted_tmpfs(tmp_path, "nr_inodes=20"),
        closing(DirectoryStore.create(tmp_path / "chunks")) as store,
        pytest.raises(StoreFull),
    ):
        put_many(store, 20, 1)


@pytest.mark.root
def test_a_disk_that_became_read_only_is_unavailable_for_writes_alone(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path, "size=2m"), closing(DirectoryStore.create(tmp_path / "chunks")) as store:
        chunk = put(store)
        syscalls.mount("none", str(tmp_path), None, MountFlag.REMOUNT | MountFlag.RDONLY)
        with pytest.raises(StoreUnavailable, match="of this worker is unavailable: Read-only"):
            put(store, b"other")
        assert store.get("r1", chunk.name)
