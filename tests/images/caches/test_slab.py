"""The slab: what it serves is what was put, after a crash, under threads, and on a full disk."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base.errors import BadConfig, HostFailed
from sockd.images.caches import slab as slab_module
from sockd.images.caches.lru_k import Lru2
from sockd.images.caches.slab import CORRELATED_S, COUNTED_S, LEAST_SLOTS, Slab
from sockd.linux import mounts

SLOT_BYTES = 8192
ROOM = 20 * (SLOT_BYTES + 48)


def is_right(key: bytes, blob: bytes) -> bool:
    return hashlib.sha256(blob).digest() == key


def blob_of(number: int, size: int = SLOT_BYTES) -> tuple[bytes, bytes]:
    blob = random.Random(number).randbytes(size)
    return hashlib.sha256(blob).digest(), blob


def opened(place: Path | int, size_bytes: int = ROOM, *, slot_bytes: int = SLOT_BYTES) -> Slab:
    return Slab.open(place, size_bytes, slot_bytes=slot_bytes, verify=is_right, correlated_s=0)


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[Slab]:
    with closing(opened(tmp_path / "slab")) as slab:
        yield slab


def test_a_blob_is_served_whole_and_in_parts(slab: Slab) -> None:
    key, blob = blob_of(1, 5000)
    assert slab.get(key) is None and slab.read(key, 0, 10) is None
    assert slab.put(key, blob)
    assert slab.get(key) == blob
    assert slab.read(key, 4000, 500) == blob[4000:4500]
    assert slab.read(key, 4900, 500) == blob[4900:]
    assert slab.read(key, 6000, 500) == b""


def test_a_full_slab_evicts_what_was_used_once(slab: Slab) -> None:
    blobs = [blob_of(number) for number in range(slab.slots + 1)]
    for key, blob in blobs[:-1]:
        slab.put(key, blob)
    assert slab.get(blobs[0][0]) == blobs[0][1]
    slab.put(*blobs[-1])
    assert len(slab) == slab.slots and slab.evictions == 1
    assert blobs[0][0] in slab and blobs[1][0] not in slab


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Model:
    """Which keys a slab holds: LRU-2, with the uses that count."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.order: Lru2[bytes] = Lru2(remembered=slots, correlated=CORRELATED_S)
        self.counted: dict[bytes, float] = {}

    def put(self, key: bytes, now: float) -> None:
        if key not in self.order and len(self.order) == self.slots:
            del self.counted[self.order.evict()]
        self.order.use(key, now)
        self.counted.setdefault(key, now)

    def read(self, key: bytes, now: float) -> None:
        if key in self.order and now - self.counted[key] >= COUNTED_S:
            self.order.use(key, now)
            self.counted[key] = now

    def discard(self, key: bytes) -> None:
        self.order.discard(key)
        self.counted.pop(key, None)


STEPS = st.tuples(
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 3.0, 29.9, 31.0, 100.0]),
    st.sampled_from(["put", "put", "read", "read", "touch", "discard"]),
    st.integers(0, 24),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=30, max_size=200))
def test_a_slab_holds_what_lru_2_keeps_with_uses_close_to_each_other_counted_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, str, int]]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(slab_module, "time", clock)
        place = tmp_path_factory.mktemp("model") / "slab"
        slab = stack.enter_context(closing(Slab.open(place, 16 * 112, slot_bytes=64, verify=is_right)))
        model = Model(slab.slots)
        for wait_s, do, number in steps:
            clock.now += wait_s
            key, blob = blob_of(number, 64)
            if do == "put":
                assert slab.put(key, blob)
                model.put(key, clock.now)
            elif do == "read":
                assert (slab.read(key, 0, 64) == blob) == (key in model.order)
                model.read(key, clock.now)
            elif do == "touch":
                slab.touch(key)
                model.read(key, clock.now)
            else:
                slab.discard(key)
                model.discard(key)
            assert {key for key, _ in (blob_of(each, 64) for each in range(25)) if key in slab} == set(model.counted)


def test_reads_shortly_after_each_other_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(slab_module, "time", clock)
    with closing(Slab.open(tmp_path / "slab", ROOM, slot_bytes=SLOT_BYTES, verify=is_right)) as slab:
        key, blob = blob_of(1)
        slab.put(key, blob)
        uses: list[float] = []
        monkeypatch.setattr(slab._order, "use", lambda _, now: uses.append(now - 1000))
        for eighth in range(10):
            clock.now = 1000 + eighth / 8
            for _ in range(50):
                assert slab.read(key, 0, 10) == blob[:10]
        assert uses == [3 / 8, 6 / 8, 9 / 8]


def test_a_blob_that_fits_no_slot_is_refused(slab: Slab) -> None:
    with pytest.raises(ValueError):
        slab.put(b"key", bytes(SLOT_BYTES + 1))


def test_blobs_are_served_after_a_restart(tmp_path: Path) -> None:
    blobs = [blob_of(number, 100 + number) for number in range(8)]
    with closing(opened(tmp_path / "slab")) as slab:
        for key, blob in blobs:
            slab.put(key, blob)
    with closing(opened(tmp_path / "slab")) as slab:
        assert [slab.read(key, 50, 10) for key, _ in blobs] == [blob[50:60] for _, blob in blobs]
        assert [slab.get(key) for key, _ in blobs] == [blob for _, blob in blobs]


def test_another_number_of_slots_empties_the_file(tmp_path: Path) -> None:
    key, blob = blob_of(1)
    with closing(opened(tmp_path / "slab")) as slab:
        slab.put(key, blob)
    with closing(opened(tmp_path / "slab", 2 * ROOM)) as slab:
        assert len(slab) == 0
        assert slab.put(key, blob) and slab.get(key) == blob


@settings(max_examples=30)
@given(flips=st.lists(st.integers(0, 8 * 200_000), min_size=1, max_size=40))
def test_a_file_with_any_bits_changed_serves_right_bytes_or_none(
    tmp_path_factory: pytest.TempPathFactory, flips: list[int]
) -> None:
    place = tmp_path_factory.mktemp("flipped") / "slab"
    blobs = [blob_of(number) for number in range(20)]
    with closing(opened(place)) as slab:
        for key, blob in blobs:
            slab.put(key, blob)
    data = bytearray(place.read_bytes())
    for bit in flips:
        data[(bit // 8) % len(data)] ^= 1 << (bit % 8)
    place.write_bytes(data)
    with closing(opened(place)) as slab:
        for key, blob in blobs:
            assert slab.get(key) in (blob, None)
            assert slab.put(key, blob)
            assert slab.get(key) == blob


FILLS = """
import hashlib, random, sys
from pathlib import Path
from sockd.images.caches.slab import Slab
slab = Slab.open(Path(sys.argv[1]), int(sys.argv[2]), slot_bytes=int(sys.argv[3]), verify=lambda *_: True)
print("filling", flush=True)
number = 0
while True:
    number += 1
    blob = random.Random(number % 40).randbytes(slab.slot_bytes)
    slab.put(hashlib.sha256(blob).digest(), blob)
    if number % 10 == 0:
        print(number, flush=True)
"""


def test_a_process_that_is_killed_while_it_fills_leaves_nothing_wrong(tmp_path: Path) -> None:
    place = tmp_path / "slab"
    for after in range(1, 6):
        command = [sys.executable, "-c", FILLS, str(place), str(ROOM), str(SLOT_BYTES)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(1 + 3 * after):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        with closing(opened(place)) as slab:
            found = [slab.get(key) in (blob, None) for key, blob in (blob_of(number) for number in range(40))]
            assert all(found) and len(slab) > 0


def test_threads_never_read_bytes_of_another_blob(slab: Slab) -> None:
    blobs = [blob_of(number) for number in range(60)]
    wrong: list[bytes] = []

    def use(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(1500):
            key, blob = draw.choice(blobs)
            if draw.random() < 0.5:
                slab.put(key, blob)
            found = slab.read(key, 100, 1000)
            if found not in (None, blob[100:1100]):
                wrong.append(key)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(slab) + len(slab._free) == slab.slots
    assert len(slab._order) == len(slab)


def test_an_evicted_slot_that_is_filled_during_a_read_is_not_served(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, blob = blob_of(0)
    slab.put(key, blob)

    def pread(fd: int, size: int, offset: int) -> bytes:
        monkeypatch.undo()
        for number in range(1, slab.slots + 1):
            slab.put(*blob_of(number))
        return os.pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert slab.get(key) is None


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "slab")), pytest.raises(BadConfig, match="another process"):
        opened(tmp_path / "slab")


def test_a_descriptor_serves_as_well_as_a_path(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    try:
        with closing(opened(fd)) as slab:
            key, blob = blob_of(1)
            assert slab.put(key, blob) and slab.get(key) == blob
    finally:
        os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounts.mount_tmpfs(str(disk), size_bytes=4 << 20)
    try:
        yield disk
    finally:
        mounts.umount_tree(str(disk))


@pytest.mark.root
def test_the_cache_takes_at_most_half_of_the_free_space(small_disk: Path) -> None:
    with closing(opened(small_disk / "slab", 1 << 30)) as slab:
        assert LEAST_SLOTS <= slab.slots <= (2 << 20) // SLOT_BYTES
        taken = [slab.put(*blob_of(number)) for number in range(slab.slots + 5)]
        assert all(taken)


@pytest.mark.root
def test_a_full_disk_is_refused_with_the_size_that_is_missing(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes((4 << 20) - 32768))
    with pytest.raises(HostFailed, match="MB of disk for the cache"):
        opened(small_disk / "slab", 1 << 30)
