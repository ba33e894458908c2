"""Where functions read from and write to: the embedded S3, the user's, DynamoDB, and the file that 120 downloads."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from benchmarks.s3.process import S3Process
from benchmarks.sebs_runner.errors import NotPossible, WrongAnswer
from benchmarks.sebs_runner.inputs import BUCKET, Input
from benchmarks.sebs_runner.stores import dynamodb, file_server
from benchmarks.sebs_runner.stores.object_store import open_store


@pytest.fixture
def inputs(tmp_path: Path) -> Input:
    (tmp_path / "in").write_bytes(b"data")
    return Input({}, {"prefix/a key": tmp_path / "in"})


def test_the_embedded_s3_gets_the_inputs_and_gives_what_was_written(inputs: Input, tmp_path: Path) -> None:
    with open_store(tmp_path, {}) as store:
        assert store.embedded
        store.put(inputs)
        store.put(inputs)  # another bench of the same run
        assert store.take("prefix/a key") == b"data"
        with pytest.raises(WrongAnswer, match="says that it wrote"):
            store.take("prefix/a key")
        assert store.env["AWS_ENDPOINT_URL_S3"].startswith("http://127.0.0.1:")
        assert store.env["AWS_SECRET_ACCESS_KEY"]


def test_the_embedded_s3_can_be_far_away(inputs: Input, tmp_path: Path) -> None:
    with open_store(tmp_path, {}) as store:
        store.put(inputs)
        store.shape(first_byte_ms=120)
        begun = time.monotonic()
        store.client.get(BUCKET, "prefix/a key")
        assert time.monotonic() - begun >= 0.12
        store.shape()
        assert store.client.get(BUCKET, "prefix/a key") == b"data"


def test_the_user_s_s3_wins_and_stays_as_it_is(inputs: Input, tmp_path: Path) -> None:
    with S3Process() as users, open_store(tmp_path, users.env()) as store:
        assert not store.embedded
        assert store.env == users.env()
        store.put(inputs)
        with users.client() as client:
            assert client.get(BUCKET, "prefix/a key") == b"data"
        with pytest.raises(NotPossible, match="only the embedded S3"):
            store.shape(first_byte_ms=10)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "k"}, "not AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL_S3": "nowhere"}, "not an address"),
    ],
)
def test_half_an_s3_is_reported(environment: dict[str, str], words: str, tmp_path: Path) -> None:
    given = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", **environment}
    with pytest.raises(NotPossible, match=words), open_store(tmp_path, given):
        pass


def test_an_s3_that_does_not_answer_is_reported(inputs: Input, tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    nowhere = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", **keys}
    with open_store(tmp_path, nowhere) as store, pytest.raises(NotPossible, match="cannot be uploaded"):
        store.put(inputs)


def test_dynamodb_has_the_bench_s_rows() -> None:
    pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    row = {"cart_id": "c", "product_id": "p", "name": "game", "price": 42}
    inputs = Input({}, items=[("shopping_cart", row)], tables={"shopping_cart": ("cart_id", "product_id")})
    with dynamodb.embedded() as server:
        env = server.put(inputs)
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        resource = boto3.resource("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"], **keys)
        table = resource.Table(env["NOSQL_STORAGE_TABLE_shopping_cart"])
        assert table.get_item(Key={"cart_id": "c", "product_id": "p"})["Item"] == row
        resource.meta.client.close()


def test_without_moto_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotPossible, match="moto is not installed") as caught, dynamodb.embedded():
        pass
    assert "pip install" in caught.value.fix


def test_the_file_to_download_is_of_its_size_and_the_same_each_time() -> None:
    with file_server.serving("test", "picture.jpg") as file:
        with urllib.request.urlopen(file.url) as answer:
            assert answer.read() == file.data
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(file.url + ".bak")
    assert len(file.data) == 230_000
    with file_server.serving("test", "picture.jpg") as again:
        assert again.data == file.data
