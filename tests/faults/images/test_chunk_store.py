"""The chunk store of images fails: it is not reached, answers errors, is slow, sends wrong bytes, or is full. Functions whose
images are in the worker's cache go on; others fail with a typed error, and serve when the store is back. No byte is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3.process import S3Process
from sockd.images.chunks.layout import Image, Reference
from sockd.images.chunks.root_table import RootEvent, changed_table
from sockd.images.chunks.root_watch import RootWatch
from sockd.images.chunks.s3_store import S3Store
from sockd.images.chunks.upload import THREADS
from tests.daemon.images import test_image_zygotes as zygotes
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import DeployFailed
from tests.faults.images.image_worker import (
    ATTEMPT_S,
    BUCKET,
    CHUNKS_ONLY,
    STORE_ERRORS,
    ImageWorker,
    drop_sandboxes,
    serves_again,
)
from tests.support.cases import Happened, case
from tests.support.images.image_layouts import python_files, write_layout
from tests.support.private_worker import LedgerBesideWorkers

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]


@case(
    "I41",
    "the chunk store of images is not reached, while functions start and a new image is deployed",
    expect="functions with cached images start; others get Images.StoreUnavailable before their deadline, and serve later",
)
def test_a_store_that_is_not_reached(worker: ImageWorker, ledger: LedgerBesideWorkers, happened: Happened) -> None:
    worker.deployed("unreached")
    drop_sandboxes(worker, "cached")
    worker.server.stop()
    try:
        assert worker.asked("cached").status == 200
        happened("cached: 200")
        happened(worker.fails_typed("unreached", *STORE_ERRORS))
        with pytest.raises(DeployFailed, match="chunk store") as refused:
            worker.new_image("refused", runs=False)
        happened(f"deploy: {refused.value.status}")
        assert refused.value.status == 503
    finally:
        with ledger.replacing():
            worker.server.start()
    assert worker.asked("unreached").json["version"].startswith("unreached")
    worker.deployed("later")
    assert worker.asked("later").status == 200


@pytest.mark.parametrize(
    "fault",
    [{"status": 500}, {"status": 503}, {"delay_s": 30}, {"truncate_after": 1000}, {"wrong_length": -1000}],
    ids=str,
)
@case(
    "I42",
    "the chunk store answers 500, 503, after 30 s, the beginning of a chunk only, and less than a chunk",
    expect="functions with cached images start; others get a typed error before their deadline, and serve later",
)
def test_a_store_that_answers_wrongly(worker: ImageWorker, happened: Happened, fault: dict[str, Any]) -> None:
    worker.deployed("wronged")
    drop_sandboxes(worker, "cached")
    worker.s3.inject(CHUNKS_ONLY, method="GET", **fault)
    assert worker.asked("cached").status == 200
    happened(worker.fails_typed("wronged", *STORE_ERRORS))
    worker.s3.remove_faults()
    serves_again(worker, "wronged")
    assert worker.asked("wronged").json["version"].startswith("wronged")


@case(
    "I43",
    "two answers of the chunk store in a row fail, for each first chunk of an image",
    expect="requests are repeated, and the function starts",
)
def test_a_store_that_fails_now_and_then(worker: ImageWorker, happened: Happened) -> None:
    worker.deployed("lucky")
    worker.s3.inject(CHUNKS_ONLY, method="GET", status=500, times=2)
    answer = worker.asked("lucky")
    happened(f"{answer.status}")
    assert answer.status == 200


@case(
    "I44",
    "chunks of an image are changed by one bit in the store, or replaced by others",
    expect="the function does not start, and starts when the chunks are back",
)
def test_a_changed_chunk(worker: ImageWorker, happened: Happened) -> None:
    known = set(worker.s3.list(BUCKET, "worker/roots/"))
    worker.deployed("changed")
    new = sorted(set(worker.s3.list(BUCKET, "worker/roots/")) - known)
    originals = {key: worker.s3.get(BUCKET, key) for key in new}
    happened(f"{len(new)} chunks of its own")

    def with_chunks(change: Callable[[bytes], bytes]) -> None:
        for key, data in originals.items():
            worker.s3.put(BUCKET, key, change(data))

    for change in (
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 0x80]),
        lambda data: bytes(len(data)),
        lambda data: data[:-16],
        lambda data: data + b"\0",
    ):
        with_chunks(change)
        try:
            happened(worker.fails_typed("changed", *STORE_ERRORS))
        finally:
            with_chunks(lambda data: data)
    assert worker.asked("changed").json["version"].startswith("changed")


@case(
    "I45",
    "a manifest is changed in each of its fields, in the store and beside the worker's record",
    expect="the changed manifest is never used: the function starts from the other copy, or not at all",
)
def test_a_changed_manifest(worker: ImageWorker, happened: Happened) -> None:
    digest = worker.new_image("manifest")
    (key,) = [key for key in worker.s3.list(BUCKET, "worker/objects/manifests/") if digest in key]
    copy = worker.daemon.state / "images" / digest.removeprefix("sha256:") / "manifest"
    in_store, beside = worker.s3.get(BUCKET, key), copy.read_bytes()
    names = -16 - 64 * int.from_bytes(in_store[28:32])  # of chunks; their keys follow, and the tag
    at = {"magic": 0, "nonce": 8, "size": 27, "count": 31, "facts": 45, "name": names, "key": -40, "tag": -1}
    refused = 0
    for name, offset in at.items():
        changed = bytearray(in_store)
        changed[offset] ^= 1
        with beside_changed(copy, beside, offset):
            worker.s3.put(BUCKET, key, bytes(changed))
            try:
                deploy(worker.daemon, f"m-{name}", digest)
                worker.fails_typed(f"m-{name}", "Images.Tampered")
            finally:
                worker.s3.put(BUCKET, key, in_store)
            refused += 1
            assert worker.asked(f"m-{name}").status == 200, "the store's manifest is right again"
        worker.daemon.remove(f"m-{name}")
        worker.until_unmounted(digest)
    happened(f"{refused} fields")


@contextmanager
def beside_changed(copy: Path, content: bytes, offset: int) -> Iterator[None]:
    start = content.index(b"\n") + 1
    changed = bytearray(content)
    changed[offset if offset < 0 else start + offset] ^= 1
    copy.write_bytes(changed)
    try:
        yield
    finally:
        copy.write_bytes(content)


HANGING = """
stall_s = 1.0
store_attempt_s = 600.0
"""
"""An attempt lasts longer than the test waits for an answer."""


@pytest.fixture
def hanging(worker: ImageWorker, python: bytes, tmp_path: Path) -> Iterator[ImageWorker]:
    """Another worker of the same server, which `stopped` stops."""
    settings = worker.settings.replace(f"s3://{BUCKET}/worker", f"s3://{BUCKET}/{tmp_path.name}")
    settings = settings.replace(f"store_attempt_s = {ATTEMPT_S}\n", HANGING)
    other = ImageWorker(
        *(worker.start(tmp_path / "state", settings), worker.server, worker.s3, python, tmp_path),
        *(settings, worker.broken),
    )
    try:
        yield other
        assert other.daemon.terminate() == 0
    finally:
        other.daemon.close()


@contextmanager
def stopped(server: S3Process) -> Iterator[None]:
    """The kernel accepts connections for it, and nobody answers."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@case(
    "I52",
    "the chunk store accepts connections and never answers, while functions start and an image is deployed",
    expect="functions with cached images start; others get Images.StoreUnavailable before their deadline, and serve later",
)
def test_a_store_that_hangs(hanging: ImageWorker, happened: Happened) -> None:
    hanging.deployed("cached")
    assert hanging.asked("cached").status == 200
    drop_sandboxes(hanging, "cached")
    hanging.deployed("cold")
    with stopped(hanging.server):
        happened(hanging.fails_typed("cold", "Images.StoreUnavailable"))
        assert hanging.asked("cached").status == 200
        hanging.fails_typed("cold", "Images.StoreUnavailable")
        with pytest.raises(DeployFailed, match="chunk store") as refused:
            hanging.new_image("refused", runs=False)
        happened(f"deploy: {refused.value.status}")
        assert refused.value.status == 503
    serves_again(hanging, "cold")


def deployed_handler(worker: ImageWorker) -> None:
    layout = worker.directory / "handler"
    write_layout(layout, [python_files().tar(), zygotes.FILES], zygotes.CONFIG, compress=False)
    deploy(worker.daemon, "handler", upload(worker.daemon, layout), timeout_s=60, init_timeout_s=60)


def serve_at_once(worker: ImageWorker) -> None:
    for name in ("program", "handler"):
        answer = worker.asked(name, {})
        assert answer.status == 200, answer.body


@case(
    "I53",
    "a worker starts again while its chunk store never answers; one time without what it had cached",
    expect="cached functions start; a handler whose Zygote needs several chunks gets Images.StoreUnavailable; later it serves",
)
def test_a_worker_that_starts_while_its_store_hangs(hanging: ImageWorker, happened: Happened) -> None:
    hanging.deployed("program")
    deployed_handler(hanging)
    serve_at_once(hanging)
    for caches in ("kept", "lost"):
        assert hanging.daemon.terminate() == 0
        hanging.daemon.close()
        if caches == "lost":
            shutil.rmtree(hanging.daemon.state / "agent")
            for profile in (hanging.daemon.state / "images").glob("*/profile"):
                profile.unlink()
        with stopped(hanging.server):
            hanging.daemon = hanging.start(hanging.daemon.state, hanging.settings)
            if caches == "kept":
                serve_at_once(hanging)
            else:
                happened(hanging.fails_typed("handler", "Images.StoreUnavailable"))
        happened(f"caches {caches}")
    serves_again(hanging, "handler")
    serves_again(hanging, "program")


@case(
    "I60",
    "the chunk store stops answering after the first chunks of an image, while its handler's Zygote starts",
    expect="Images.StoreUnavailable; later it serves",
)
def test_a_store_that_hangs_while_a_zygote_starts(hanging: ImageWorker, happened: Happened) -> None:
    deployed_handler(hanging)
    assert hanging.daemon.terminate() == 0
    hanging.daemon.close()
    shutil.rmtree(hanging.daemon.state / "agent")
    settings = hanging.settings.replace("attempt_s = 600.0", "attempt_s = 2.0").replace(
        "[images]", "[images]\nprofile_mb = 0"
    )
    hanging.daemon = hanging.start(hanging.daemon.state, settings)
    hanging.s3.inject(f"{BUCKET}/{hanging.directory.name}/roots/", method="GET", skip=FIRST_CHUNKS, delay_s=600)
    happened(hanging.fails_typed("handler", "Images.StoreUnavailable"))
    hanging.s3.remove_faults()
    serves_again(hanging, "handler")


FIRST_CHUNKS = 3
"""With which an image is mounted, and no Python starts."""


@case(
    "I54",
    "the chunk store stops answering in the middle of an import",
    expect="the deploy fails with Images.StoreUnavailable after one request's time; later it succeeds",
)
def test_a_store_that_hangs_during_an_import(worker: ImageWorker, happened: Happened) -> None:
    worker.s3.forget_requests()
    worker.s3.inject(CHUNKS_ONLY, delay_s=600)
    with pytest.raises(DeployFailed, match="does not answer in time") as refused:
        worker.new_image("halfway", data_bytes=16 << 20, runs=False)
    happened(f"{refused.value.status}: {refused.value.message[:100]}")
    assert refused.value.status == 503
    asked = [each for each in worker.s3.requests() if each["path"].startswith(f"/{CHUNKS_ONLY}")]
    assert len(asked) <= 3 * THREADS, "each thread has made one request, three times"
    worker.s3.remove_faults()
    worker.new_image("halfway", data_bytes=1 << 20, runs=False)


@case(
    "I47",
    "garbage is collected again and again, while functions run in images and an image is removed",
    expect="functions go on; what is not used is deleted",
)
def test_collections_while_functions_run(worker: ImageWorker, happened: Happened) -> None:
    worker.deployed("kept")
    for _ in range(2):
        assert worker.asked("kept").status == 200
        digest = worker.new_image("garbage", data_bytes=2 << 20, runs=False)
        answer = worker.daemon.manage("POST", "/images/gc")
        assert answer.status == 200, answer
        found = answer.json
        assert digest in [row["digest"] for row in found["removed"]]
        assert found["store"]["problems"] == [] and found["store"]["deleted"]
        drop_sandboxes(worker, "kept")
        assert worker.asked("kept").json["version"].startswith("kept")
        assert worker.asked("cached").status == 200
    states = [root["state"] for root in found["store"]["roots"]]
    happened(f"roots: {', '.join(states)}")
    assert states == ["active"]


@case(
    "I48",
    "a worker without a reference reads an expired root of the chunk store, and a collection goes on",
    expect="an alarm stops all deletions, until an operator clears it",
)
def test_a_read_of_an_expired_root(worker: ImageWorker, happened: Happened) -> None:
    digest = worker.new_image("unused", data_bytes=1 << 20, runs=False)
    credentials = worker.server.credentials
    with closing(S3Store(worker.server.url, BUCKET, "worker", credentials)) as store:
        old = next(key for key in store.list_objects("manifests/") if digest in key).split("/")[1]
        blocker = Reference("another", old, Image("default", "held"))
        store.put_object(blocker.key, b"")
        worker.daemon.manage("POST", "/images/gc")
        assert list(store.names(old)), "another worker refers to it"
        store.delete_object(blocker.key)
        changed_table(store, lambda table: table.after(old, RootEvent.EXPIRE, time.time()))
        RootWatch(store, "another").reading(old)
        found = worker.daemon.manage("POST", "/images/gc").json["store"]
        happened("; ".join(found["waits"]))
        assert "nothing is deleted: another has read an expired root" in found["waits"] and list(store.names(old))
        worker.daemon.manage("POST", "/images/gc?clear_alarms=true")
        worker.daemon.manage("POST", "/images/gc")
        assert list(store.names(old)) == []
    assert worker.asked("cached").status == 200
