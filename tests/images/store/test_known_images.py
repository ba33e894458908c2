"""Deploys of images that the store or the worker has: what is read, stored anew, and recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.images.store.profiled_workers import (
    CHUNKS,
    DIGEST,
    IMAGE,
    READS,
    RECORD,
    Worker,
    Workers,
)
from tests.support.images.chunked_images import chunk_path, flip_bit

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_an_image_that_is_here_keeps_the_form_of_its_file_system(workers: Workers) -> None:
    worker = workers.new()
    worker.publish(IMAGE)
    again = await worker.upload({RECORD.stored_name})
    assert not again.begin(DIGEST), "the store has it in that form"
    assert again.record(RECORD.reference, worker.directory).stored_name == RECORD.stored_name
    new = await worker.upload(set())
    assert new.begin(DIGEST), "the store does not have it in today's form"
    new.abandon()


async def test_an_image_with_a_damaged_chunk_is_not_here_already(workers: Workers, tmp_path: Path) -> None:
    worker = workers.new()
    manifest = worker.publish(IMAGE)
    reported: list[str] = []
    flip_bit(chunk_path(tmp_path / "store", manifest.chunks[CHUNKS - 1], manifest.root), 1000)  # which no start reads
    deploy = await worker.upload({RECORD.stored_name}, reported.append)
    assert deploy.begin(DIGEST)
    assert "1 of its chunks" in reported[-1]
    deploy.abandon()
    assert (await worker.start())["origin_chunks"], "the worker holds the image as before"
    worker.publish(IMAGE)
    assert not (await worker.upload({RECORD.stored_name})).begin(DIGEST)


async def test_an_image_that_was_imported_again_is_read_from_its_new_chunks(workers: Workers, tmp_path: Path) -> None:
    """They may be in the root that has the image already, as other bytecode is other bytes."""
    worker = workers.new()
    changed = IMAGE[:-1] + bytes([IMAGE[-1] ^ 1])
    worker.publish(changed)
    imported = tmp_path / "imported"
    shutil.copytree(worker.directory, imported)
    worker.publish(IMAGE)
    await worker.importer.renew(RECORD, worker.directory, imported)
    await worker.check(changed)


async def test_a_deploy_of_a_stored_image_fetches_all_that_a_start_reads_from_the_store(
    workers: Workers, profiled: Worker, tmp_path: Path
) -> None:
    second = workers.new()
    deploy = await second.upload({RECORD.stored_name})
    assert not deploy.begin(DIGEST)
    deploy.record(RECORD.reference, second.directory)
    for kind in ("manifests", "profiles"):
        shutil.rmtree(tmp_path / "store" / "objects" / kind)
    counters = await second.start()
    assert counters["origin_chunks"] == 0 and counters["startup_reads"] == len(READS)
