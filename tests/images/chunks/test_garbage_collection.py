"""Workers and a collector on real stores: uploads, references, the move to a new root, alarms, and failures on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from sockd.base.errors import ManifestMissing, SecretsLocked, StoreUnavailable, Tampered
from sockd.images.chunks.catalog import Catalog, UploadTarget
from sockd.images.chunks.chunk import CHUNK_BYTES, decrypt
from sockd.images.chunks.collection import Delete, Wait
from sockd.images.chunks.collector import LEASE_S, Collector
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.layout import MANIFESTS
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.root_table import RootState, read_table
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.chunks.store import ChunkStore, StoredObject
from sockd.images.chunks.upload import upload
from tests.support.images.chunk_memory import MemoryStore

KEYS = ImageKeys(bytes(32))
GRACE_S = 1000.0
BASE = b"base" * (CHUNK_BYTES // 4)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(store: ChunkStore, clock: Clock) -> Catalog:
    return made_catalog(store, clock)


@pytest.fixture
def collector(store: ChunkStore, clock: Clock) -> Collector:
    return Collector(store, worker="w", grace_s=GRACE_S, clock=clock)


def made_catalog(
    store: ChunkStore,
    clock: Callable[[], float],
    worker: str = "w",
    tenant: str = "default",
    keys: ImageKeys = KEYS,
) -> Catalog:
    watch = RootWatch(store, worker, clock=clock, refresh_s=0)
    return Catalog(store, keys, worker=worker, watch=watch, clock=clock, tenant=tenant)


def deployed(catalog: Catalog, store: ChunkStore, image: str) -> Manifest:
    target = catalog.begin(image)
    uploaded = upload([BASE, image.encode() * 100], store, root=target.root, salt=target.salt)
    return catalog.publish(target, uploaded.chunks, uploaded.size_bytes, b'{"a":1}')


def plain(store: ChunkStore, manifest: Manifest) -> bytes:
    return b"".join(decrypt(store.get(manifest.root, chunk.name), chunk.key) for chunk in manifest.chunks if chunk)


def collected(collector: Collector, catalog: Catalog, clock: Clock) -> None:
    """All that a collection does, with the time that it waits for."""
    collector.rotate()
    list(collector.run())
    catalog.follow(lambda manifest: None)
    list(collector.run())
    clock.now_s += GRACE_S
    list(collector.run())


def test_an_image_that_was_published_opens(store: ChunkStore, catalog: Catalog) -> None:
    manifest = deployed(catalog, store, "sha256:a")
    assert catalog.images() == ["sha256:a"] and catalog.open("sha256:a") == manifest
    assert plain(store, manifest) == BASE + b"sha256:a" * 100
    with pytest.raises(ManifestMissing, match="deploy it again"):
        catalog.open("sha256:b")


def test_a_worker_with_another_key_is_refused_before_it_stores_anything(
    store: ChunkStore, collector: Collector, clock: Clock
) -> None:
    collector.rotate()  # the table of roots is there, and nobody's
    catalog = made_catalog(store, clock)
    deployed(catalog, store, "a")
    objects = list(store.list_objects(""))
    other = made_catalog(store, clock, "other", keys=ImageKeys(bytes([1] * 32)))
    for call in (other.images, lambda: other.begin("b"), lambda: other.reconcile([])):
        with pytest.raises(SecretsLocked, match=r"images of another key.*images\.store"):
            call()
    assert list(store.list_objects("")) == objects
    collected(collector, catalog, clock)
    with pytest.raises(SecretsLocked):
        other.begin("b")
    assert made_catalog(store, clock, "third").begin("a").salt == catalog.begin("a").salt


def test_an_early_manifest_is_that_of_the_active_root_or_is_not_used(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    manifest = deployed(catalog, store, "a")
    catalog.set_profile("a", b"profile")
    other = made_catalog(store, clock, "other")
    assert (other.early_manifest("a"), other.early_profile("a")) == (None, None), "it has not read the table of roots"
    assert other.images() == [] and other.early_manifest("b") is None
    early = other.early_manifest("a")
    assert early is not None and other.early_profile("a") == b"profile"
    target = other.begin("a")
    assert other.existing(target, early) == manifest
    with pytest.raises(Tampered):
        other.existing(target, early._replace(data=early.data[:-1] + b"?"))
    other.abandon(target)
    collector.rotate()
    assert other.existing(other.begin("a"), early) is None


def test_what_is_removed_goes_with_the_next_collection_and_nothing_else(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    for image in ("a", "b"):
        deployed(catalog, store, image)
    catalog.set_profile("b", b"profile")
    old = catalog.open("b")
    catalog.remove("a")
    collected(collector, catalog, clock)
    new = catalog.open("b")
    assert new.root != old.root and new.chunks == old.chunks, "copies have the same names and keys"
    assert plain(store, new) == BASE + b"b" * 100 and catalog.profile(catalog.open("b")) == b"profile"
    assert list(store.names(old.root)) == [] and len(list(store.names(new.root))) == 2
    assert [key for key in store.list_objects("") if old.root in key] == []
    again = deployed(catalog, store, "a")
    assert again.chunks[0] == new.chunks[0], "the salt outlives the root, so that copies and uploads share chunks"


def test_a_root_waits_for_every_worker_that_uses_it(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    other = made_catalog(store, clock, "other")
    for each in (catalog, other):
        deployed(each, store, "a")
    collector.rotate()
    *_, last = collector.run()
    assert isinstance(last.action, Wait) and "used by other, w" in last.action.reasons[0]
    switched: list[Manifest] = []
    assert catalog.follow(switched.append) == ["a"] and switched[0].root == catalog.open("a").root
    *_, last = collector.run()
    assert isinstance(last.action, Wait) and "used by other" in last.action.reasons[0]
    assert collector.forget_worker("other") == 1
    *_, last = collector.run()
    assert isinstance(last.action, Wait) and "has expired" in last.action.reasons[0]


def test_a_failed_switch_keeps_the_old_root(store: ChunkStore, catalog: Catalog, collector: Collector) -> None:
    old = deployed(catalog, store, "a")

    def fail(manifest: Manifest) -> None:
        raise RuntimeError("the agent has died")

    collector.rotate()
    list(collector.run())
    with pytest.raises(RuntimeError):
        catalog.follow(fail)
    list(collector.run())
    found = read_table(store)
    assert found and found.table.state(old.root) is RootState.RETIRED
    assert catalog.follow(lambda manifest: None) == ["a"]


def test_an_upload_that_a_rotation_overtakes_is_copied_when_it_is_complete(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    target = catalog.begin("a")
    collected(collector, catalog, clock)
    uploaded = upload([BASE], store, root=target.root, salt=target.salt)
    catalog.publish(target, uploaded.chunks, uploaded.size_bytes, b"{}")
    collected(collector, catalog, clock)
    assert plain(store, catalog.open("a")) == BASE and catalog.open("a").root != target.root


def test_a_root_that_is_made_while_a_collector_lists_is_not_one_that_was_deleted(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(catalog, store, "a")
    listed = store.list_objects
    rotated: list[str] = []

    def list_objects(prefix: str) -> Iterator[str]:
        if prefix == MANIFESTS and not rotated:
            rotated.append(Collector(store, worker="other", grace_s=GRACE_S, clock=clock).rotate())
            deployed(catalog, store, "b")
        return listed(prefix)

    monkeypatch.setattr(store, "list_objects", list_objects)
    assert isinstance(collector.step().action, Wait)
    assert catalog.open("b").root == rotated[0] and plain(store, catalog.open("b")) == BASE + b"b" * 100


def test_an_upload_that_died_is_forgotten_at_the_next_start(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    deployed(catalog, store, "a")
    target = catalog.begin("b")
    upload([BASE], store, root=target.root, salt=target.salt)
    restarted = made_catalog(store, clock)
    assert restarted.reconcile({"a", "lost"}) == ["lost"] and restarted.images() == ["a"]
    collected(collector, restarted, clock)
    assert plain(store, restarted.open("a")) == BASE + b"a" * 100


def test_an_abandoned_upload_leaves_no_reference(store: ChunkStore, catalog: Catalog) -> None:
    catalog.abandon(catalog.begin("a"))
    assert list(store.list_objects("references/")) == [] and catalog.images() == []
    deployed(catalog, store, "a")
    first, second = catalog.begin("a"), catalog.begin("a")
    catalog.abandon(first)
    catalog.remove("a")
    assert len(list(store.list_objects("references/"))) == 1, "the second upload goes on"
    catalog.abandon(second)
    assert list(store.list_objects("references/")) == []


def test_an_image_of_another_worker_is_adopted_without_an_upload(
    store: ChunkStore, catalog: Catalog, clock: Clock
) -> None:
    deployed(catalog, store, "a")
    other = made_catalog(store, clock, "other")
    target = other.begin("a")
    assert other.existing(target) == catalog.open("a")
    other.adopt(target)
    catalog.remove("a")
    assert plain(store, other.open("a")) == BASE + b"a" * 100


def test_a_tenant_sees_its_images_alone(store: ChunkStore, catalog: Catalog, clock: Clock) -> None:
    deployed(catalog, store, "a")
    other = made_catalog(store, clock, tenant="t2")
    assert other.images() == [] and other.existing(other.begin("a")) is None
    sealed = store.get_object(f"manifests/{catalog.open('a').root}/default/a")
    assert sealed
    store.put_object(f"manifests/{catalog.open('a').root}/t2/a", sealed.data)
    with pytest.raises(Tampered, match="of another tenant"):
        other.existing(other.begin("a"))


def test_a_manifest_of_another_image_is_tampered(store: ChunkStore, catalog: Catalog) -> None:
    root = deployed(catalog, store, "a").root
    deployed(catalog, store, "b")
    sealed = store.get_object(f"manifests/{root}/default/b")
    assert sealed
    store.put_object(f"manifests/{root}/default/a", sealed.data)
    with pytest.raises(Tampered, match="should be"):
        catalog.open("a")


def test_an_image_opened_from_an_expired_root_stops_deletion_until_it_is_cleared(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    manifest = deployed(catalog, store, "a")
    assert catalog.open("a") == manifest
    assert collector.forget_worker("w") == 1
    collector.rotate()
    list(collector.run())
    assert list(store.list_objects("alarms/")) == []
    assert catalog.open("a") == manifest, "the worker holds it still, as it knows"
    clock.now_s += GRACE_S + LEASE_S
    for _ in range(3):
        step = collector.step()
        assert isinstance(step.action, Wait) and "w has read an expired root" in step.action.reasons[-1]
    assert collector.clear_alarms(restore=True) == [manifest.root]
    catalog.follow(lambda manifest: None)  # writes the reference again that was dropped
    collected(collector, catalog, clock)
    assert plain(store, catalog.open("a")) == BASE + b"a" * 100


def test_an_alarm_in_the_middle_of_a_deletion_stops_it_at_the_next_step(
    store: ChunkStore, catalog: Catalog, clock: Clock
) -> None:
    collector = Collector(store, worker="w", grace_s=GRACE_S, batch=1, threads=1, clock=clock)
    manifest = deployed(catalog, store, "a")
    catalog.remove("a")
    collector.rotate()
    list(collector.run())
    clock.now_s += GRACE_S
    assert collector.step().action == Delete(manifest.root), "the manifest goes first"
    RootWatch(store, "reader", clock=clock).reading(manifest.root)
    assert isinstance(collector.step().action, Wait)
    assert len(list(store.names(manifest.root))) == 2
    collector.clear_alarms(restore=False)
    *_, last = collector.run()
    assert isinstance(last.action, Wait) and "is deleted in 1000 s" in last.action.reasons[-1]
    clock.now_s += GRACE_S + LEASE_S
    list(collector.run())
    assert list(store.names(manifest.root)) == []


def test_an_image_with_a_lost_chunk_keeps_its_root_and_is_named(
    store: ChunkStore, catalog: Catalog, collector: Collector, clock: Clock
) -> None:
    manifest = deployed(catalog, store, "a")
    deployed(catalog, store, "b")
    assert manifest.chunks[1]
    store.delete(manifest.root, manifest.chunks[1].name)
    collector.rotate()
    steps = list(collector.run())
    assert next(step.problem for step in steps if step.problem).startswith("the chunk store")
    assert catalog.follow(lambda manifest: None) == ["b"]
    clock.now_s += GRACE_S
    *_, last = collector.run()
    assert (
        isinstance(last.action, Wait) and f"default/a could not be copied from {manifest.root}" in last.action.reasons
    )
    assert store.has(manifest.root, manifest.chunks[0].name)  # type: ignore[union-attr]


def test_chunks_of_a_failed_upload_are_seen(store: ChunkStore, catalog: Catalog, collector: Collector) -> None:
    manifest = deployed(catalog, store, "a")
    images = collector.holdings().manifests[manifest.root]
    assert not collector.has_stray_chunks(manifest.root, images)
    target = catalog.begin("b")
    upload([b"half" * 100], store, root=target.root, salt=target.salt)
    catalog.abandon(target)
    assert collector.has_stray_chunks(manifest.root, images)


def test_one_collector_at_a_time_until_its_lease_ends(store: ChunkStore, catalog: Catalog, clock: Clock) -> None:
    deployed(catalog, store, "a")
    first = Collector(store, worker="w1", clock=clock)
    second = Collector(store, worker="w2", clock=clock)
    first.step()
    assert second.step().action == Wait(("another worker collects",))
    clock.now_s += LEASE_S + 1
    assert second.step().action == Wait()
    assert first.step().action == Wait(("another worker collects",))


def test_a_target_crosses_into_a_confined_process_as_plain_data_and_hides_its_salt(catalog: Catalog) -> None:
    target = catalog.begin("a")
    assert msgspec.json.decode(msgspec.json.encode(target), type=UploadTarget) == target
    assert "salt" not in repr(target)


class Unreachable(MemoryStore):
    """At times."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.reads: list[str] = []

    def get_object(self, key: str) -> StoredObject | None:
        self.reads.append(key)
        if self.is_down:
            raise StoreUnavailable(self.name, "it does not answer")
        return super().get_object(key)


def test_a_reader_goes_on_for_a_while_without_the_table_and_then_stops() -> None:
    store, clock = Unreachable(), Clock()
    catalog = made_catalog(store, clock)
    root = deployed(catalog, store, "a").root
    watch = RootWatch(store, "w", clock=clock, refresh_s=30, max_age_s=600)
    watch.reading(root)
    store.is_down = True
    clock.now_s = 599
    watch.reading(root)
    clock.now_s = 601
    with pytest.raises(StoreUnavailable):
        watch.reading(root)


def test_a_reader_asks_for_the_table_twice_a_minute_at_most() -> None:
    store, clock = Unreachable(), Clock()
    root = deployed(made_catalog(store, clock), store, "a").root
    watch = RootWatch(store, "w", clock=clock)
    store.reads.clear()
    for second in range(60):
        clock.now_s = second
        watch.reading(root)
    assert store.reads == ["roots", "roots"]
