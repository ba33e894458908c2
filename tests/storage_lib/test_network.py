"""Without an initscript, and without sockd: the library is a wrapper of boto3, against a server that checks signatures."""

from __future__ import annotations

import hashlib
import importlib
import io
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.storage_lib.conftest import S3

PART = 8 << 20


@pytest.fixture
def alone(function: Callable[[str], ModuleType], s3: S3, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `storage` of a program that knows nothing of sockd."""
    for name, value in s3.server.env().items():
        monkeypatch.setenv(name, value)
    return function("storage")


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, 300_000, PART, PART + 1, 3 * PART + 5])
def test_objects_of_every_size(alone: Any, s3: S3, tmp_path: Path, size: int) -> None:
    data = content(size)
    s3.put("x", data)
    view = alone.storage.get_instance().download_stream("bkt", "x")
    assert isinstance(view, memoryview) and view.readonly and view == data
    alone.storage.get_instance().download("bkt", "x", str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert s3.requests("HEAD") == []


@pytest.mark.parametrize("fault", [{"truncate_after": 5_000_000}, {"die_after_headers": True}])
def test_a_connection_that_breaks_is_made_again(alone: Any, s3: S3, fault: dict[str, Any]) -> None:
    data = content(2 * PART + 77)
    s3.put("x", data)
    s3.client.inject("bkt/x", method="GET", times=2, **fault)
    assert alone.download("bkt", "x") == data


def test_an_object_that_always_breaks_is_an_error_and_leaves_no_file(alone: Any, s3: S3, tmp_path: Path) -> None:
    from botocore.exceptions import BotoCoreError

    s3.put("x", content(300_000))
    s3.client.inject("bkt/x", method="GET", truncate_after=1000)
    with pytest.raises(BotoCoreError):
        alone.download("bkt", "x", str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_replaced_meanwhile_is_an_error_and_no_mixture(alone: Any, s3: S3) -> None:
    network = importlib.import_module("sockd_storage.network")
    s3.put("x", b"old" * 1_000_000)
    etag = network.client("s3").head_object(Bucket="bkt", Key="x")["ETag"]
    s3.put("x", b"new" * 1_000_000)
    with pytest.raises(network.client("s3").exceptions.ClientError, match="PreconditionFailed"):
        network.read_part("bkt", "x", etag, 0, 10, lambda offset, data: None)


def test_one_connection_serves_one_read_after_the_other(alone: Any, s3: S3) -> None:
    s3.put("x", content(300_000))
    for _ in range(4):
        alone.download("bkt", "x")
    assert len({record["connection"] for record in s3.requests("GET")}) == 1


def test_uploads_come_back(alone: Any, s3: S3, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a file")
    client = alone.storage.get_instance()
    keys = [
        client.upload("bkt", "dir/name.tar.gz", str(tmp_path / "file")),
        client.upload_stream("bkt", "name", io.BytesIO(b"from a stream")),
        alone.upload_stream("bkt", "name.bin", memoryview(b"from memory")),
        alone.upload("bkt", "name.bin", str(tmp_path / "file")),
    ]
    assert [s3.read(key) for key in keys] == [b"from a file", b"from a stream", b"from memory", b"from a file"]
    stem, digits, extension = keys[0].rsplit(".", 2)
    assert (stem, extension) == ("dir/name.tar", "gz")
    assert len(digits) == 8 and int(digits, 16) >= 0


def test_directories_with_more_keys_than_a_page(alone: Any, s3: S3, tmp_path: Path) -> None:
    network = importlib.import_module("sockd_storage.network")
    for number in range(7):
        s3.put(f"d/{number} ü+%20&<", b"%d" % number)
    s3.put("e", b"not this")
    listed, token = network.client("s3").list_objects_v2(Bucket="bkt", Prefix="d/", MaxKeys=3), None
    token = listed["NextContinuationToken"]
    assert network.list_page("bkt", "d/", token)[0] == [f"d/{number} ü+%20&<" for number in range(3, 7)]
    alone.download_directory("bkt", "d/", str(tmp_path))
    assert {path.name: path.read_text() for path in (tmp_path / "d").iterdir()} == {
        f"{number} ü+%20&<": str(number) for number in range(7)
    }
    assert not (tmp_path / "e").exists()


def test_what_is_missing_is_boto3s_own_error(alone: Any, s3: S3) -> None:
    with pytest.raises(alone.get_instance().client.exceptions.NoSuchKey):
        alone.download("bkt", "missing")


def test_an_instance_makes_no_connection_and_there_is_one(function: Callable[[str], ModuleType]) -> None:
    storage = function("storage")
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(storage.storage.get_instance())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(map(id, made))) == 1
    assert "sockd_storage.network" not in sys.modules


def test_threads_may_read_at_once(alone: Any, s3: S3) -> None:
    data = [content(1000 + number) for number in range(8)]
    for number, piece in enumerate(data):
        s3.put(str(number), piece)
    found: dict[int, str] = {}

    def read(number: int) -> None:
        found[number] = hashlib.md5(alone.download("bkt", str(number))).hexdigest()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {number: hashlib.md5(piece).hexdigest() for number, piece in enumerate(data)}


@pytest.mark.parametrize("value", ["", "x", "99999:1", "0x5:1", "5", "0:1", "2:99999999"])
def test_a_variable_that_names_no_link_is_no_link(
    function: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOCKD_INITSCRIPT_FD", value)
    assert function("sockd_initscript").link() is None
    monkeypatch.delenv("SOCKD_INITSCRIPT_FD")  # else the fixture would expire it
