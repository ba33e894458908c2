"""From which image's startup profile one is derived, and from which none is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from sockd.base.errors import StoreUnavailable
from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.upload import upload
from sockd.images.profiles.profile import OpenProfile, Profile
from sockd.images.profiles.startup_data import StartupDataWriter
from sockd.images.registry.image import ImageConfig
from sockd.images.store import derived_profile as module
from sockd.images.store.derived_profile import derived_profile, possible_parents
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.kept_copies import PROFILE, keep_manifest, keep_profile, kept_profile
from tests.support.images.chunked_images import flip_bit, random_image
from tests.support.images.startup_profiles import whole
from tests.support.own_descriptors import descriptors

KEYS = ImageKeys(bytes(range(32)))
CHUNKS = 12
OLD = random_image(CHUNKS)
READ = 5
"""The chunk whose first block the start of each image has read."""


def record(number: int, reference: str = "registry/app:1") -> ImageRecord:
    """The higher the number, the later the import."""
    return ImageRecord(
        digest=f"sha256:{number:064x}",
        reference=reference,
        config=ImageConfig(),
        size_bytes=len(OLD),
        layers=1,
        imported_at=float(number),
    )


def build(number: int) -> bytes:
    """OLD with other bytes in so many of its chunks, from the end."""
    return OLD[: len(OLD) - number * CHUNK_BYTES] + random.Random(number).randbytes(number * CHUNK_BYTES)


class Worker:
    """Its catalog and the directories of its images."""

    def __init__(self, path: Path, store: DirectoryStore, tenant: str = "default") -> None:
        self.images = path / "images"
        self.catalog = Catalog(store, KEYS, worker="w", tenant=tenant)
        self._store = store
        self.records: list[ImageRecord] = []
        self.manifests: dict[str, Manifest] = {}

    def directory(self, image: ImageRecord) -> Path:
        return self.images / image.hex

    def add(self, image: ImageRecord, data: bytes) -> ImageRecord:
        """Have it in the store and here, without a profile."""
        target = self.catalog.begin(image.stored_name)
        pieces = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        done = upload(pieces, self._store, root=target.root, salt=target.salt)
        manifest = self.catalog.publish(target, done.chunks, done.size_bytes, b"{}")
        self.directory(image).mkdir(parents=True)
        keep_manifest(self.catalog, manifest, self.directory(image))
        self.records.append(image)
        self.manifests[image.digest] = manifest
        return image

    def start(self, image: ImageRecord, data: bytes) -> None:
        """Have a profile of it, too."""
        writer = StartupDataWriter(1 << 20)
        assert writer.add(READ, 1, data[READ * CHUNK_BYTES : (READ + 1) * CHUNK_BYTES])
        keep_profile(
            self.catalog, self.manifests[image.digest], Profile((0, READ, 1), writer.data()), self.directory(image)
        )

    def add_started(self, image: ImageRecord, data: bytes = OLD) -> ImageRecord:
        self.start(self.add(image, data), data)
        return image

    def derived(self, image: ImageRecord, stack: ExitStack, *, asks_store: bool = False) -> OpenProfile | None:
        known = (self.catalog, image, self.manifests[image.digest], self.records, self.images)
        found = derived_profile(*known, asks_store=asks_store)
        if found is not None:
            stack.callback(found.close)
        return found

    def parent(self, image: ImageRecord, *, asks_store: bool = False) -> str | None:
        """The image whose profile one gets."""
        before = descriptors()
        with ExitStack() as stack:
            found = self.derived(image, stack, asks_store=asks_store)
        assert descriptors() == before
        return None if found is None else found.image


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    store = DirectoryStore.create(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def worker(tmp_path: Path, store: DirectoryStore) -> Worker:
    return Worker(tmp_path, store)


def test_a_new_build_gets_the_order_of_the_build_before_and_the_data_of_equal_chunks(worker: Worker) -> None:
    old = worker.add_started(record(1))
    inserted = random.Random(7).randbytes(CHUNK_BYTES)
    first_changed = worker.add(record(2), b"\1" + OLD[1:])
    later_moved = worker.add(record(3), OLD[: 2 * CHUNK_BYTES] + inserted + OLD[2 * CHUNK_BYTES :])
    for image, order, places in (
        (first_changed, (0, READ, 1), {1: 1, READ: READ}),
        (later_moved, (0, READ + 1, 1), {0: 0, 1: 1, READ: READ + 1}),
    ):
        with ExitStack() as stack:
            found = worker.derived(image, stack)
            assert found is not None and found.places is not None
            assert (found.image, found.order) == (old.stored_name, order)
            assert found.places.size_bytes == len(OLD)
            assert {number: found.places.numbers.get(number) for number in (0, 1, READ)} == {0: None, **places}
            own = kept_profile(worker.catalog, worker.manifests[old.digest], worker.directory(old))
            assert own is not None and whole(found) == Profile(order, whole(own).data)
            own.close()


def test_without_a_parent_there_is_no_profile(worker: Worker) -> None:
    new = worker.add(record(2), OLD)
    assert worker.parent(new) is None
    worker.start(new, OLD)
    assert worker.parent(new) is None, "its own is not derived"
    worker.add_started(record(1), random_image(CHUNKS, seed=9))
    assert worker.parent(new) is None, "the two have nothing in common"


def damage_head(worker: Worker, image: ImageRecord) -> None:
    flip_bit(worker.directory(image) / PROFILE, 300)


def damage_manifest(worker: Worker, image: ImageRecord) -> None:
    flip_bit(worker.directory(image) / "manifest", 8 * 700)


def cut_manifest(worker: Worker, image: ImageRecord) -> None:
    (worker.directory(image) / "manifest").write_bytes(b"r1\nshort")


def lose_profile(worker: Worker, image: ImageRecord) -> None:
    (worker.directory(image) / PROFILE).unlink()


def remove(worker: Worker, image: ImageRecord) -> None:
    """While a start has its record still."""
    worker.catalog.remove(image.stored_name)
    shutil.rmtree(worker.directory(image))


@pytest.mark.parametrize("asks_store", [False, True])
@pytest.mark.parametrize("spoil", [damage_head, damage_manifest, cut_manifest, lose_profile, remove])
def test_a_parent_that_is_missing_or_damaged_is_passed_over(
    worker: Worker, spoil: Callable[[Worker, ImageRecord], None], asks_store: bool
) -> None:
    first, second = worker.add_started(record(1), build(2)), worker.add_started(record(2), build(1))
    new = worker.add(record(3), OLD)
    assert worker.parent(new, asks_store=asks_store) == second.stored_name
    spoil(worker, second)
    worker.catalog.set_profile(first.stored_name, b"none that could be asked for")
    is_in_store = asks_store and spoil is damage_head
    assert worker.parent(new, asks_store=asks_store) == (second if is_in_store else first).stored_name
    spoil(worker, first)
    assert worker.parent(new) == (second.stored_name if is_in_store else None)


def test_the_profile_of_another_tenant_is_not_used(tmp_path: Path, store: DirectoryStore, worker: Worker) -> None:
    """The worker was another tenant's before. Chunks are shared, so their names say that the images are alike."""
    old = worker.add_started(record(1))
    other = Worker(tmp_path, store, tenant="other")
    new = other.add(record(2), OLD)
    other.records.append(old)
    assert other.parent(new, asks_store=True) is None
    worker.records.append(new)
    worker.manifests[new.digest] = other.manifests[new.digest]
    assert worker.parent(new) == old.stored_name, "it is the tenant alone"


def test_the_store_is_asked_once_and_for_a_build_of_the_repository(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [worker.add_started(record(number)) for number in (1, 2)]
    stranger = worker.add_started(record(3, "registry/other:1"))
    new = worker.add(record(4), OLD)
    for image in (*builds, stranger):
        (worker.directory(image) / PROFILE).rename(worker.directory(image) / "aside")
    asked: list[str] = []
    ask = Catalog.profile

    def profile(catalog: Catalog, manifest: Manifest) -> bytes | None:
        asked.append(manifest.image)
        return ask(catalog, manifest) if len(asked) > 1 else None

    monkeypatch.setattr(Catalog, "profile", profile)
    assert worker.parent(new) is None and asked == []
    assert worker.parent(new, asks_store=True) is None and asked == [builds[1].stored_name]
    assert worker.parent(new, asks_store=True) == builds[1].stored_name
    assert (worker.directory(builds[1]) / PROFILE).read_bytes() == (worker.directory(builds[1]) / "aside").read_bytes()
    assert worker.parent(new, asks_store=True) == builds[1].stored_name and len(asked) == 2, "it was kept"


def test_a_store_that_fails_is_no_error(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(catalog: Catalog, manifest: Manifest) -> bytes | None:
        raise StoreUnavailable("s3", "it does not answer")

    first, second = (worker.add_started(record(number)) for number in (1, 2))
    new = worker.add(record(3), OLD)
    lose_profile(worker, second)
    (worker.directory(first) / PROFILE).rename(worker.directory(first) / "aside")
    monkeypatch.setattr(Catalog, "profile", profile)
    assert worker.parent(new, asks_store=True) is None
    (worker.directory(first) / "aside").rename(worker.directory(first) / PROFILE)
    assert worker.parent(new, asks_store=True) == first.stored_name


@pytest.mark.parametrize("sizes", [(8, CHUNKS), (CHUNKS, 8)])
def test_an_image_with_too_many_chunks_gives_and_gets_none(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    old = worker.add_started(record(1), OLD[: sizes[0] * CHUNK_BYTES])
    new = worker.add(record(2), OLD[: sizes[1] * CHUNK_BYTES])
    monkeypatch.setattr(module, "MOST_CHUNKS", CHUNKS)
    assert worker.parent(new) == old.stored_name
    monkeypatch.setattr(module, "MOST_CHUNKS", CHUNKS - 1)
    assert worker.parent(new) is None


def test_builds_of_the_repository_come_before_other_images_with_a_profile() -> None:
    builds = [record(number, f"registry/app:{number}") for number in range(1, 7)]
    others = [record(number, "registry/other:1") for number in range(10, 60)]
    here = {each.digest for each in (builds[1], builds[3], *others[::2])}
    found, compared = possible_parents(builds[2], [*others, *builds], lambda each: each.digest in here)
    assert found == [builds[3], builds[1], builds[5]]
    assert compared == others[::2][: -module.MOST_COMPARED - 1 : -1]


def test_of_other_images_those_that_share_most_chunks_are_tried(worker: Worker) -> None:
    shares = [6, 1, 3, 5, 4, 2]
    images = [worker.add_started(record(n, f"registry/other-{n}:1"), build(n)) for n in shares]
    new = worker.add(record(20), OLD)
    nearest = sorted(images, key=lambda each: each.imported_at)
    for each in nearest[: module.MOST_TRIED]:
        assert worker.parent(new, asks_store=True) == each.stored_name
        damage_head(worker, each)
    assert worker.parent(new, asks_store=True) is None, "three were tried, and the store has not been asked"
    worker.records.remove(nearest[0])
    assert worker.parent(new) == nearest[module.MOST_TRIED].stored_name
    for each in nearest[3:5]:
        worker.records.remove(each)
    assert worker.parent(new) is None, "the last one has less than half of the chunks"


def test_builds_are_of_one_repository_whatever_their_tags_are() -> None:
    for reference, repository in (
        ("registry:5000/team/app:1", "registry:5000/team/app"),
        (f"registry:5000/team/app@sha256:{64 * '0'}", "registry:5000/team/app"),
        ("registry:5000/team/app", "registry:5000/team/app"),
        ("oci:/images/app:latest", "oci:/images/app"),
        ("oci:/images/app", "oci:/images/app"),
        ("-", "-"),
    ):
        assert record(1, reference).repository == repository
        assert msgspec.structs.replace(record(1), reference=reference).repository == repository
