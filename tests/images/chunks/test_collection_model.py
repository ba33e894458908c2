"""Garbage collection under any interleaving: workers deploy, remove and follow, two collectors rotate, copy, expire and delete;
each store call is a step of its own, and any process may be killed between two of them.

The invariant (nothing that is in use is ever lost): each image of a worker's records has a reference of that worker to a root
that has not expired, and has its manifest and all chunks that the manifest names.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sockd.images.chunks.catalog import Catalog
from sockd.images.chunks.chunk import CHUNK_BYTES, encrypt
from sockd.images.chunks.collection import Wait
from sockd.images.chunks.collector import LEASE_S, Collector
from sockd.images.chunks.image_keys import ImageKeys
from sockd.images.chunks.layout import ALARMS, MANIFESTS, REFERENCES, Image, Reference, manifest_key
from sockd.images.chunks.manifest import chunk_names
from sockd.images.chunks.root_table import RootState, read_table
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.chunks.store import StoredObject
from tests.support.examples import examples
from tests.support.images.chunk_memory import MemoryStore
from tests.support.images.stepped import Process, SteppedStore, current

KEYS = ImageKeys(bytes(32))
WORKERS = ("w0", "w1")
IMAGES = ("a", "b", "c")
# Images share the chunks "base" and "lib".
PIECES = {"a": (b"base", b"lib", b"a"), "b": (b"base", b"b"), "c": (b"lib", b"c", b"base", b"c2")}
GRACE_S = 1000.0
EXAMPLES = int(os.environ.get("SOCKD_MODEL_EXAMPLES", "30"))


class Worker:
    """A daemon: its records outlive it, its catalog does not."""

    def __init__(self, name: str, model: CollectionModel) -> None:
        self.name = name
        self.model = model
        self.records: set[str] = set()
        self.process: Process | None = None
        self.start()

    def start(self) -> None:
        watch = RootWatch(self.model.store, self.name, clock=self.model.clock, refresh_s=0)
        self.catalog = Catalog(self.model.store, KEYS, worker=self.name, watch=watch, clock=self.model.clock)

    def deploy(self, image: str) -> None:
        early = self.catalog.early_manifest(image)
        target = self.catalog.begin(image)
        if self.catalog.existing(target, early) is not None:
            self.catalog.adopt(target)
        else:
            chunks = []
            for piece in PIECES[image]:
                chunk, data = encrypt(piece * 16, target.salt)
                self.model.store.put(target.root, chunk.name, data)
                chunks.append(chunk)
            self.catalog.publish(target, tuple(chunks), (len(chunks) - 1) * CHUNK_BYTES + 1, b"{}")
        self.records.add(image)

    def fail_a_deploy(self, image: str) -> None:
        target = self.catalog.begin(image)
        chunk, data = encrypt(b"half" * 16, target.salt)
        self.model.store.put(target.root, chunk.name, data)
        self.catalog.abandon(target)

    def remove(self, image: str) -> None:
        self.records.discard(image)
        self.catalog.remove(image)

    def follow(self) -> None:
        self.catalog.follow(lambda manifest: None)

    def restart(self) -> None:
        self.start()
        assert self.catalog.reconcile(set(self.records)) == []


class CollectionModel(RuleBasedStateMachine):
    """Two workers and two collectors."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.store = SteppedStore(self.memory, self.before_delete)
        self.now_s = 0.0
        self.damaged: set[str] = set()
        self.blocked: dict[Process | None, bool] = {}
        """For each collector, whether there was an alarm when the step began."""
        self.collectors = [
            Collector(self.store, worker=f"c{number}", grace_s=GRACE_S, batch=2, threads=1, clock=self.clock)
            for number in range(2)
        ]
        self.collecting: list[Process | None] = [None, None]
        self.workers = [Worker(name, self) for name in WORKERS]

    def clock(self) -> float:
        return self.now_s

    def before_delete(self, root: str) -> None:
        self.damaged.add(root)
        process = current()
        assert not self.blocked.get(process), "deleted in a step that began after an alarm"

    # ---- what may happen ----

    @initialize()
    def first_image(self) -> None:
        self.workers[0].deploy("a")

    @rule(
        number=st.integers(0, 1),
        image=st.sampled_from(IMAGES),
        verb=st.sampled_from(["deploy", "fail", "remove", "follow"]),
    )
    def begin_work(self, number: int, image: str, verb: str) -> None:
        worker = self.workers[number]
        if worker.process is not None:
            return
        run = {
            "deploy": lambda: worker.deploy(image),
            "fail": lambda: worker.fail_a_deploy(image),
            "remove": lambda: worker.remove(image),
            "follow": worker.follow,
        }[verb]
        worker.process = Process(run)

    @rule(number=st.integers(0, 1), calls=st.sampled_from([0, 3, 15, 40, 1000]))
    def collect(self, number: int, calls: int) -> None:
        """A whole collection, of which so many calls are made now."""
        if self.collecting[number] is None:
            self.collecting[number] = Process(lambda: self.whole_collection(self.collectors[number]))
            self.advance(2 + number, calls)

    def whole_collection(self, collector: Collector) -> None:
        self.now_s += LEASE_S + 1
        collector.rotate()
        for _ in range(3):
            for _ in range(60):
                self.blocked[current()] = any(key.startswith(ALARMS) for key in self.memory.objects)
                if isinstance(collector.step().action, Wait):
                    break
            self.idle_workers_follow()
            self.now_s += GRACE_S + 1

    def idle_workers_follow(self) -> None:
        process = current()
        assert process
        process.is_atomic = True
        for worker in self.workers:
            if worker.process is None:
                worker.follow()
        process.is_atomic = False

    @rule(number=st.integers(0, 3), calls=st.sampled_from([1, 1, 2, 3, 5, 8, 13, 25]))
    def advance(self, number: int, calls: int) -> None:
        process = self.process(number)
        if process is not None:
            process.advance(calls)
            self.tidy(number)

    @rule(number=st.integers(0, 3))
    def finish(self, number: int) -> None:
        self.advance(number, 1000)

    @rule(number=st.integers(0, 3))
    def crash(self, number: int) -> None:
        process = self.process(number)
        if process is not None:
            process.crash()
            self.tidy(number)
            if number < 2:
                self.workers[number].process = Process(self.workers[number].restart)
            else:
                old = self.collectors[number - 2]
                self.collectors[number - 2] = Collector(
                    self.store, worker=old._holder.split(".")[0], grace_s=GRACE_S, batch=2, threads=1, clock=self.clock
                )

    @rule(seconds=st.sampled_from([LEASE_S + 1, GRACE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.in_state(RootState.EXPIRED))
    @rule()
    def stranger_reads_an_expired_root(self) -> None:
        RootWatch(self.memory, "stranger").reading(self.in_state(RootState.EXPIRED)[0])
        assert any(key.startswith(ALARMS) for key in self.memory.objects)

    @rule(restore=st.booleans())
    def operator_clears_alarms(self, restore: bool) -> None:
        self.collectors[1].clear_alarms(restore=restore)
        self.blocked.clear()

    # ---- what holds ----

    @invariant()
    def nothing_in_use_is_lost(self) -> None:
        references = {Reference.parse(key) for key in self.memory.objects if key.startswith(REFERENCES)}
        for worker in self.workers:
            for name in worker.records:
                image = Image("default", name)
                roots = [each.root for each in references if each.worker == worker.name and each.image == image]
                assert any(self.is_safe(root) and self.is_whole(root, image) for root in roots), (
                    worker.name,
                    name,
                    roots,
                )

    @invariant()
    def a_manifest_means_that_its_chunks_are_there(self) -> None:
        for key in self.memory.objects:
            if key.startswith(MANIFESTS):
                _, root, tenant, name = key.split("/")
                if root not in self.damaged:
                    assert self.is_whole(root, Image(tenant, name))

    def teardown(self) -> None:
        """Everybody comes to an end; then a collection leaves only what is in use and what came since."""
        for number in range(4):
            self.finish(number)
            self.finish(number)  # of a restart
        self.collectors[0].clear_alarms(restore=False)
        self.blocked.clear()
        self.collectors[0].rotate()
        for _ in range(100):
            self.now_s += GRACE_S + LEASE_S + 1
            steps = list(self.collectors[0].run(max_steps=500))
            for worker in self.workers:
                worker.follow()
            if not isinstance(steps[-1].action, Wait) or steps[-1].action.reasons:
                continue
            break
        found = read_table(self.memory)
        assert found
        assert {root for root, chunks in self.memory.chunks.items() if chunks} <= {found.table.active}
        used = {piece for worker in self.workers for image in worker.records for piece in PIECES[image]}
        assert len(self.memory.chunks.get(found.table.active, {})) == len(used)
        self.nothing_in_use_is_lost()
        for worker in self.workers:
            for image in worker.records:
                manifest = worker.catalog.open(image)
                assert manifest.root == found.table.active

    # ---- parts ----

    def process(self, number: int) -> Process | None:
        return self.workers[number].process if number < 2 else self.collecting[number - 2]

    def tidy(self, number: int) -> None:
        process = self.process(number)
        if process is not None and process.is_done:
            self.blocked.pop(process, None)
            if number < 2:
                self.workers[number].process = None
            else:
                self.collecting[number - 2] = None

    def in_state(self, state: RootState) -> list[str]:
        found = read_table(self.memory)
        return found.table.in_state(state) if found else []

    def is_safe(self, root: str) -> bool:
        return root in self.in_state(RootState.ACTIVE) + self.in_state(RootState.RETIRED)

    def is_whole(self, root: str, image: Image) -> bool:
        sealed: StoredObject | None = self.memory.objects.get(manifest_key(root, image))
        return sealed is not None and chunk_names(sealed.data) <= self.memory.chunks.get(root, {}).keys()


TestCollection = CollectionModel.TestCase
TestCollection.settings = settings(max_examples=examples(EXAMPLES), stateful_step_count=50)
TestCollection = pytest.mark.timeout(300)(TestCollection)
