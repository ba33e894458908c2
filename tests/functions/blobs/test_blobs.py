"""Blobs: what one worker has stored another one gets, and what no deploy needs is deleted, whoever was killed when."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

import pytest

from sockd.base.errors import StoreUnavailable, Tampered
from sockd.base.postgres.database import BadDatabase
from sockd.functions.blobs import blob_objects
from sockd.functions.blobs.blob_objects import BlobObjects
from sockd.functions.blobs.blob_table import BlobTable, FilesGone
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_record import FunctionRecord
from tests.functions.blobs.harness import KEY, Harness

pytestmark = pytest.mark.anyio
RECORD = FunctionRecord("f", 1, "d1", 10, "f:f", "{}", "[]", "", 5.0, 5.0)
EMPTY = FunctionAggregate("f")
DEPLOYED = EMPTY.with_deploy(RECORD, keep=2)


def file_of(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: io.BytesIO(data)


async def test_a_blob_is_stored_once_sealed_and_read_as_it_was(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_objects, "PART_BYTES", 1000)
    data = bytes(range(256)) * 10
    await harness.blobs.put("code/d1", file_of(data))
    stored = harness.objects
    assert len(stored) == 3
    await harness.blobs.put("code/d1", file_of(b"other"))
    assert harness.objects == stored and await harness.get("code/d1") == data
    assert await harness.get("code/d2") is None
    found = harness.chunks.get_object(stored[0])
    assert found is not None and data[:64] not in found.data
    await harness.blobs.put("code/empty", file_of(b""))
    assert await harness.get("code/empty") == b""


async def test_parts_that_are_changed_or_moved_are_refused(harness: Harness) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    (one,) = harness.objects
    await harness.blobs.put("code/d2", file_of(b"two"))
    (two,) = set(harness.objects) - {one}
    moved = harness.chunks.get_object(one)
    assert moved is not None
    harness.chunks.put_object(two, moved.data)
    with pytest.raises(Tampered, match="code/d2 in of this worker is not as it was stored"):
        await harness.get("code/d2")
    harness.chunks.put_object(two, b"short")
    with pytest.raises(Tampered):
        await harness.get("code/d2")
    assert list(harness.path.glob("got")) == []


async def test_bytes_that_the_store_has_lost_are_stored_again(harness: Harness) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    (lost,) = harness.objects
    harness.chunks.delete_object(lost)
    assert await harness.get("code/d1") is None
    await harness.blobs.put("code/d1", file_of(b"one"))
    assert await harness.get("code/d1") == b"one" and len(harness.objects) == 1


async def test_only_what_no_deploy_needs_is_collected(harness: Harness) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    await harness.blobs.put("wheel/w1", file_of(b"wheel"))
    await harness.blobs.put("wheel/w2", file_of(b"wheel"))
    stored = await harness.functions.put(
        EMPTY.with_deploy(replace(RECORD, closure='[{"digest":"w1"}]'), keep=2), expected=EMPTY
    )
    assert await harness.blobs.collect(unused_s=3600.0) == 0
    assert await harness.blobs.collect(unused_s=0.0) == 1
    assert (
        await harness.get("code/d1") == b"one"
        and await harness.get("wheel/w1")
        and await harness.get("wheel/w2") is None
    )
    await harness.functions.remove(stored)
    assert await harness.blobs.collect(unused_s=0.0) == 2
    assert harness.objects == []


async def test_a_deploy_whose_files_were_collected_is_not_recorded(harness: Harness) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    assert await harness.blobs.collect(unused_s=0.0) == 1
    with pytest.raises(FilesGone, match="deploy again"):
        await harness.functions.put(DEPLOYED, expected=EMPTY)
    assert await harness.functions.read() == []
    await harness.blobs.put("code/d1", file_of(b"one"))
    needs_module = EMPTY.with_deploy(replace(RECORD, initscript="i1"), keep=2)
    with pytest.raises(FilesGone):
        await harness.functions.put(needs_module, expected=EMPTY)
    await harness.blobs.put("initscript/i1", file_of(b"wasm"))
    await harness.functions.put(needs_module, expected=EMPTY)


async def test_deploys_and_collections_at_the_same_time_lose_no_file(harness: Harness) -> None:
    stored, lost = EMPTY, 0
    for number in range(40):
        digest = f"d{number}"
        await harness.blobs.put(f"code/{digest}", file_of(b"one"))
        new = stored.with_deploy(replace(RECORD, digest=digest), keep=2)
        put, _ = await asyncio.gather(
            harness.functions.put(new, expected=stored), harness.blobs.collect(unused_s=0.0), return_exceptions=True
        )
        if isinstance(put, FilesGone):
            lost += 1
            continue
        assert isinstance(put, FunctionAggregate)
        stored = put
        for record in stored.deploys:
            assert await harness.get(f"code/{record.digest}") == b"one"
    assert lost < 40
    await harness.blobs.collect(unused_s=0.0)
    assert len(harness.objects) == len(stored.deploys)


@pytest.mark.parametrize("at", ["reserve", "write", "complete"])
async def test_what_a_killed_writer_has_left_is_deleted_and_nothing_of_others(harness: Harness, at: str) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    generation = await harness.table.reserve("code/d2")
    objects = BlobObjects(harness.chunks, KEY, harness.table.space)
    if at != "reserve":
        objects.write("code/d2", generation, io.BytesIO(b"two"))
    if at == "complete":
        assert await harness.table.complete("code/d2", generation, 1)
    assert await harness.blobs.collect(unused_s=3600.0) == 0
    assert await harness.get("code/d2") == (b"two" if at == "complete" else None)
    await harness.functions.put(DEPLOYED, expected=EMPTY)
    assert await harness.blobs.collect(unused_s=0.0) == 1
    assert len(harness.objects) == 1 and await harness.get("code/d1") == b"one"
    assert not await harness.table.complete("code/d2", generation, 1)


async def test_bytes_of_a_collector_that_was_killed_are_found(harness: Harness) -> None:
    await harness.blobs.put("code/d1", file_of(b"one"))
    assert len(await harness.table.collect(0.0)) == 1  # and is killed before it deletes the bytes
    assert len(harness.objects) == 1
    assert await harness.blobs.collect() == 1 and harness.objects == []


async def test_a_writer_that_was_slower_than_the_collection_is_refused(harness: Harness) -> None:
    def slow() -> BinaryIO:
        asyncio.run_coroutine_threadsafe(harness.table.collect(0.0), loop).result()
        return io.BytesIO(b"one")

    loop = asyncio.get_running_loop()
    with pytest.raises(StoreUnavailable, match="took too long"):
        await harness.blobs.put("code/d1", slow)
    assert await harness.blobs.collect() == 1 and harness.objects == []


async def test_a_worker_of_another_group_is_refused(harness: Harness) -> None:
    again = await BlobTable.open(harness.functions.database, "g")
    assert again.space == harness.table.space
    with pytest.raises(BadDatabase, match=r"those of the group 'g': set group\.name"):
        await BlobTable.open(harness.functions.database, "other")
