"""What is on disk, and the order of listings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.s3.bucket import Bucket, common_prefix
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Object, Staged
from benchmarks.s3.store import DirectoryInUse, Store


def stage(bucket: Bucket, data: bytes) -> Staged:
    path = bucket.new_file()
    path.write_bytes(data)
    return Staged(path.name, len(data), b"\0" * 16, None)


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    bucket = store.create("bucket")
    bucket.publish("a/../key", stage(bucket, b"hello"), {"content-type": "text/plain"})
    store.close()
    store = Store.open(tmp_path)
    found, fd = store.bucket("bucket").open_object("a/../key")
    assert os.read(fd, 10) == b"hello"
    assert found.headers == {"content-type": "text/plain"}
    os.close(fd)
    store.close()


def test_what_was_left_half_done_is_removed_at_the_start(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    bucket = store.create("bucket")
    kept = bucket.publish("key", stage(bucket, b"hello"), {})
    stage(bucket, b"received, not published")
    (tmp_path / "bucket" / "x.tmp").write_text("{")
    store.close()
    store = Store.open(tmp_path)
    assert len(list((tmp_path / "bucket").iterdir())) == 3
    assert store.bucket("bucket").find("key") == kept
    store.close()


def test_an_object_that_is_replaced_is_still_read_by_who_has_it_open(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    bucket = store.create("bucket")
    bucket.publish("key", stage(bucket, b"old"), {})
    _, fd = bucket.open_object("key")
    bucket.publish("key", stage(bucket, b"newer"), {})
    assert os.read(fd, 10) == b"old"
    assert bucket.find("key").size == 5
    os.close(fd)
    assert len(list(tmp_path.glob("bucket/*.data"))) == 1
    bucket.delete("key")
    assert list(tmp_path.glob("bucket/*.data")) == []
    store.remove("bucket")
    assert not (tmp_path / "bucket").exists()
    store.close()


def test_an_upload_that_must_not_be_published_leaves_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    bucket = store.create("bucket")

    def refuse(_old: Object | None) -> None:
        raise S3Error("PreconditionFailed", "")

    with pytest.raises(S3Error):
        bucket.publish("key", stage(bucket, b"hello"), {}, condition=refuse)
    assert [path.name for path in (tmp_path / "bucket").iterdir()] == ["bucket.json"]
    store.close()


def test_a_directory_has_one_server(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(DirectoryInUse):
        Store.open(tmp_path)
    store.close()
    Store.open(tmp_path).close()


@given(
    keys=st.sets(st.text("ab/\U0010ffff", max_size=5), max_size=30),
    prefix=st.text("ab/", max_size=2),
    delimiter=st.sampled_from(["", "/", "ab", "\U0010ffff"]),
    limit=st.integers(1, 5),
)
def test_pages_together_are_the_whole_listing(keys: set[str], prefix: str, delimiter: str, limit: int) -> None:
    objects = [Object(key, "", 0, "", 0.0) for key in keys if key]
    bucket = Bucket(Path("never"), 0.0, objects)
    expected = sorted({common_prefix(key, prefix, delimiter) or key for key in keys if key and key.startswith(prefix)})
    found: list[str] = []
    more = True
    while more:
        page, more = bucket.page(prefix, delimiter, found[-1] if found else "", limit)
        found += [entry if isinstance(entry, str) else entry.key for entry in page]
        assert len(page) == limit or not more
    assert found == expected
