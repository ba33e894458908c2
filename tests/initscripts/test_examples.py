"""The example initscripts, built from source: what they send, in which order, and what the function gets."""

from __future__ import annotations

import json
import time

import pytest

from sockd_initscripts.authoring import toolchain
from sockd_initscripts.engine import modules
from tests.initscripts.builds import example
from tests.initscripts.fake_engine import FakeEngine

NAMES = sorted(path.name for path in toolchain.EXAMPLES.iterdir())
BOTH = [(name, suffix) for name in ("thumbnailer", "image_recognition") for suffix in (".c", ".rs")]
IMAGES = {
    "bucket": {"bucket": "bench", "input": "411-0-input", "model": "411-1-model"},
    "object": {"input": "a.jpg", "model": "net.pth"},
}
IMAGE, MODEL = ("bench", "411-0-input/a.jpg"), ("bench", "411-1-model/net.pth")


def event(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_small_and_asks_for_nothing_but_the_engine(name: str) -> None:
    begun = time.perf_counter()
    wasm = example(name)
    print(f"{name}: {len(wasm)} bytes, built in {(time.perf_counter() - begun) * 1e3:.0f} ms")
    info = modules.check_module(wasm)
    assert info.memory_pages == 1
    assert len(wasm) <= 20_000


@pytest.mark.parametrize(("name", "suffix"), BOTH)
def test_a_script_in_rust_is_as_good(name: str, suffix: str) -> None:
    info = modules.check_module(example(name, suffix))
    assert info.size_bytes <= 20_000
    assert info.memory_pages <= 2


@pytest.mark.parametrize("suffix", [".c", ".rs"])
@pytest.mark.parametrize(
    ("prefix", "key", "read"),
    [
        ("210-0-input", "a.jpg", "210-0-input/a.jpg"),
        ("210-0-input/", "a+b%2Bc.jpg", "210-0-input/a b+c.jpg"),
        ("", 'höhe "x"\n.jpg', 'höhe "x"\n.jpg'),
    ],
)
def test_thumbnailer_reads_the_object_that_the_function_will(prefix: str, key: str, read: str, suffix: str) -> None:
    objects = {("bench", read): b"jpeg"}
    given = event({"bucket": {"bucket": "bench", "input": prefix}, "object": {"key": key, "width": 200}})
    run = FakeEngine(objects, given).run(example("thumbnailer", suffix))
    assert run.addresses == ["s3:"]
    assert run.messages == {0: (["s3.GetObject", "bench", read], 200, b"jpeg")}


@pytest.mark.parametrize("suffix", [".c", ".rs"])
def test_image_recognition_has_both_reads_under_way_at_once(suffix: str) -> None:
    run = FakeEngine({IMAGE: b"jpeg", MODEL: b"weights"}, event(IMAGES)).run(example("image_recognition", suffix))
    assert run.sent_before_waiting == 2
    assert run.messages == {
        0: (["s3.GetObject", *IMAGE], 200, b"jpeg"),
        1: (["s3.GetObject", *MODEL], 200, b"weights"),
    }


@pytest.mark.parametrize("suffix", [".c", ".rs"])
def test_one_read_that_fails_stops_no_other(suffix: str) -> None:
    wasm = example("image_recognition", suffix)
    broken = FakeEngine({IMAGE: b"jpeg", MODEL: b"weights"}, event(IMAGES), broken=frozenset({0})).run(wasm)
    assert broken.messages == {1: (["s3.GetObject", *MODEL], 200, b"weights")}
    absent = FakeEngine({MODEL: b"weights"}, event(IMAGES)).run(wasm)
    assert {number: message[1] for number, message in absent.messages.items()} == {0: 404, 1: 200}
    nameless = {"bucket": IMAGES["bucket"], "object": {"model": "net.pth"}}
    assert list(FakeEngine({MODEL: b"weights"}, event(nameless)).run(wasm).messages) == [1]


@pytest.mark.parametrize("given", [b"", b"{", b"[]", b"null", b'{"bucket": 1}', b"\xff" * 100, b"[" * 70_000])
@pytest.mark.parametrize("name", NAMES)
def test_an_event_that_is_none_of_the_scripts_is_read_to_its_end(name: str, given: bytes) -> None:
    run = FakeEngine({}, given, services={"sqs:": lambda *_: b"{}"}).run(example(name))
    assert (run.outcome, run.messages) == ("exit", {})


def test_compression_reads_a_directory_page_by_page() -> None:
    keys = [f"in/acmart/{name}" for name in ("a&b.tex", "figures/1 <2>.png", "z", "é")]
    objects = {("bench", key): key.encode() for key in keys} | {("bench", "in/other"): b"no"}
    given = event({"bucket": {"bucket": "bench", "input": "in"}, "object": {"key": "acmart"}})
    run = FakeEngine(objects, given).run(example("compression"))
    assert run.reads() == [
        ["s3.ListObjectsV2", "bench", "in/acmart"],
        *(["s3.GetObject", "bench", key] for key in keys),
    ]
    assert [run.messages[number][2].decode() for number in range(1, 5)] == keys

    paged = FakeEngine(objects, given, page_keys=3).run(example("compression"))
    assert paged.reads() == [
        ["s3.ListObjectsV2", "bench", "in/acmart"],
        ["s3.ListObjectsV2", "bench", "in/acmart", "3"],
        *(["s3.GetObject", "bench", key] for key in keys),
    ]


def test_compression_stays_within_the_budget_of_rpcs() -> None:
    objects = {("bench", f"in/all/{number:04}"): b"" for number in range(50)}
    given = event({"bucket": {"bucket": "bench", "input": "in"}, "object": {"key": "all"}})
    run = FakeEngine(objects, given, rpcs=20).run(example("compression"))
    assert len(run.messages) == 20


def test_a_claim_names_the_object_to_read() -> None:
    claim = json.dumps({"Messages": [{"MessageId": "1", "Body": json.dumps({"key": "jobs/é.json"})}]}).encode()
    asked = []

    def sqs(method: str, body: bytes) -> bytes:
        asked.append((method, json.loads(body)))
        return claim

    given = event({"queue": "http://sqs/q", "bucket": "bench"})
    run = FakeEngine({("bench", "jobs/é.json"): b"job"}, given, services={"sqs:": sqs}).run(example("sqs_claim"))
    assert asked == [("ReceiveMessage", {"QueueUrl": "http://sqs/q", "MaxNumberOfMessages": 1})]
    assert run.messages[1 << 32][2] == claim
    assert run.messages[0] == (["s3.GetObject", "bench", "jobs/é.json"], 200, b"job")


def test_an_empty_queue_aborts_the_launch() -> None:
    given = event({"queue": "http://sqs/q", "bucket": "bench"})
    run = FakeEngine({}, given, services={"sqs:": lambda *_: b'{"Messages":[]}'}).run(example("sqs_claim"))
    assert (run.outcome, run.status, run.text) == ("abort", 204, "the queue is empty")


def test_shards_are_asked_for_by_name_and_all_at_once() -> None:
    names = ["s0", "é" * 100, ""]
    given = event({"server": "grpc://db:1", "shards": names})
    run = FakeEngine({}, given, services={"grpc://db:1": lambda _, body: body}).run(example("vector_db"))
    assert run.addresses == ["grpc://db:1"]
    assert run.sent_before_waiting == 3
    encoded = [name.encode() for name in names]
    requests = [b"\x0a\x02" + encoded[0], b"\x0a\xc8\x01" + encoded[1], b"\x0a\x00"]
    assert [run.messages[number][2] for number in range(3)] == requests
