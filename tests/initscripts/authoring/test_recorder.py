"""The recorder: what it makes of reads, and that the script asks for the right things when the event is another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sockd_initscripts.authoring import recorder, toolchain
from sockd_initscripts.authoring.field_texts import Field, Fields, Text, value_at
from sockd_initscripts.authoring.script_plan import Again, Directory, Each, Get, Listing, Step, Unknown, plan
from sockd_initscripts.engine import modules
from tests.initscripts.builds import build_text
from tests.initscripts.fake_engine import FakeEngine, Objects, listed

Reads = list[list[str]]

IMAGES = {
    "bucket": {"bucket": "bench", "input": "411-0-input", "model": "411-1-model"},
    "object": {"input": "a.jpg", "model": "net.pth"},
}


def get(bucket: str, key: str) -> list[str]:
    return ["s3.GetObject", bucket, key]


def explained(text: str, event: object) -> str:
    """An explanation as a template: fields in braces."""
    return "".join(
        "{" + ".".join(map(str, part.path)) + (":unquoted" if part.unquoted else "") + "}"
        if isinstance(part, Field)
        else part.text
        for part in Fields(event).explain(text)
    )


def filled(text: Text, event: object) -> str:
    return "".join(str(value_at(event, part.path)) if isinstance(part, Field) else part.text for part in text)


# -- texts


@pytest.mark.parametrize(
    ("text", "event", "template"),
    [
        ("a.jpg", {"key": "a.jpg"}, "{key}"),
        ("in/a.jpg", {"prefix": "in", "object": {"key": "a.jpg"}}, "{prefix}/{object.key}"),
        ("in/a.jpg.meta", {"prefix": "in", "key": "a.jpg"}, "{prefix}/{key}.meta"),
        ("models/net.pth", {"key": "a.jpg"}, "models/net.pth"),
        ("in/a b+c.jpg", {"prefix": "in", "key": "a+b%2Bc.jpg"}, "{prefix}/{key:unquoted}"),
        ("users/42/photo", {"user": 42}, "users/{user}/photo"),
        ("shard-1", {"n": 1}, "shard-1"),
        ("1/shard", {"n": 1}, "{n}/shard"),
        ("contest", {"size": "test"}, "contest"),
        ("a/b/c", {"x": "a/b", "y": "b/c", "z": "c"}, "{x}/{z}"),
        ("year=2026/é", {"records": [{"day": {"year": "2026"}, "name": "é"}]}, "year={records.0.day.year}/{records.0.name}"),
        ("True", {"flag": True}, "True"),
        ("", {"empty": ""}, ""),
    ],
)  # fmt: skip
def test_a_text_is_explained_by_fields(text: str, event: object, template: str) -> None:
    assert explained(text, event) == template


words = st.text(st.sampled_from("ab1/-. é"), max_size=6)
events = st.recursive(
    words | st.integers(0, 200) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(text=st.text(st.sampled_from("ab1/-. é"), max_size=30), event=events)
def test_an_explanation_is_the_text_itself(text: str, event: object) -> None:
    parts = Fields(event).explain(text)
    assert all(not isinstance(part, Field) or not part.unquoted for part in parts) or "%" not in text
    assert filled(parts, event) == text


def test_an_event_of_many_fields_is_explained_in_time() -> None:
    event = {f"field{number}": f"value{number}" for number in range(20_000)}
    assert explained("x/value7/" + "y" * 900, event) == "x/{field7}/" + "y" * 900


# -- steps


def kinds(steps: list[Step]) -> list[type]:
    return [type(step) for step in steps]


def test_reads_in_the_order_of_a_list_are_a_directory() -> None:
    event = {"bucket": "bench", "dir": "in"}
    reads = [["s3.ListObjectsV2", "bench", "in"], get("bench", "in/a"), get("bench", "in/b"), get("bench", "models/x")]
    (directory, model) = plan(reads, event)
    assert isinstance(directory, Directory)
    assert (directory.pages, directory.keys) == (1, 2)
    assert isinstance(model, Get)
    paged = [reads[0], [*reads[0], "token"], *reads[1:]]
    assert [(d.pages, d.keys) for d in plan(paged, event) if isinstance(d, Directory)] == [(2, 2)]


@pytest.mark.parametrize(
    "behind",
    [
        [],
        [get("other", "in/a")],
        [get("bench", "out/a")],
        [get("bench", "in/latest")],  # which the event names
    ],
)
def test_a_list_whose_keys_are_not_read_is_a_list(behind: Reads) -> None:
    event = {"bucket": "bench", "dir": "in", "name": "latest"}
    steps = plan([["s3.ListObjectsV2", "bench", "in"], *behind], event)
    assert kinds(steps) == [Listing, *([Get] * len(behind))]


def test_reads_in_another_order_end_the_directory() -> None:
    reads = [["s3.ListObjectsV2", "bench", "in"], get("bench", "in/b"), get("bench", "in/a")]
    assert kinds(plan(reads, {})) == [Directory, Get]


def test_reads_of_all_elements_are_a_loop() -> None:
    event = {"bucket": "b", "parts": [{"name": "x11"}, {"name": "y22"}, {"name": "z33"}]}
    reads = [get("b", f"in/{part}.bin") for part in ("x11", "y22", "z33")]
    (each,) = plan(reads, event)
    assert isinstance(each, Each)
    assert (each.array, each.count) == (("parts",), 3)
    assert kinds(plan(reads[:2], event)) == [Get, Get]
    assert kinds(plan(reads[::-1], event)) == [Get, Get, Get]
    assert kinds(plan(reads[:1], {"parts": [{"name": "x11"}]})) == [Get]


def test_what_is_read_again_is_fetched_once() -> None:
    first, again, other, lonely = plan([get("b", "k"), get("b", "k"), get("b", "l"), ["tcp.line", "tcp://h:1"]], {})
    assert kinds([first, again, other, lonely]) == [Get, Again, Get, Unknown]


def test_a_page_of_a_list_is_asked_for_by_what_it_was_asked_for() -> None:
    page, first, next_one = plan(
        [
            ["s3.ListObjectsV2", "bench", "in/", "", "/", "2", ""],
            ["s3.ListObjectsV2", "bench", "in/", "token-of-event"],
            ["s3.ListObjectsV2", "bench", "in/", "token-of-s3", "/", "2", ""],
        ],
        {"token": "token-of-event"},
    )
    assert kinds([page, first, next_one]) == [Listing, Listing, Unknown]
    assert isinstance(first, Listing) and len(first.page) == 4


# -- scripts


def test_the_source_says_what_was_read_and_what_was_guessed() -> None:
    event = {"bucket": "bench", "key": "a.jpg", "same": "a.jpg"}
    reads = [get("bench", "a.jpg"), get("bench", "model */ \n.bin")]
    for language, comment in (("c", "/* 0: "), ("rust", "// 0: ")):
        text = recorder.write(reads, event, name="f */ \n#", language=language)
        assert f'{comment}s3.GetObject "bench" "a.jpg"' in text
        assert "key, or same: they are equal in this event" in text
        assert "a constant: no part of the key is a field of the event" in text


@pytest.mark.parametrize("language", ["c", "rust"])
def test_a_recorded_script_is_as_good_as_one_by_hand(language: str) -> None:
    reads = [get("bench", "411-0-input/a.jpg"), get("bench", "411-1-model/net.pth")]
    wasm = build_text(recorder.write(reads, IMAGES, name="imgrec", language=language), language)
    assert modules.check_module(wasm).size_bytes < 20_000
    other = {"bucket": {"bucket": "B", "input": "I", "model": "M/"}, "object": {"input": "é", "model": "m"}}
    run = FakeEngine({("B", "I/é"): b"1", ("B", "M/m"): b"2"}, json.dumps(other).encode()).run(wasm)
    assert run.reads() == [get("B", "I/é"), get("B", "M/m")]
    assert run.sent_before_waiting == 2


@pytest.mark.parametrize("language", ["c", "rust"])
def test_gets_of_http_are_asked_for_by_server(language: str) -> None:
    def reads(item: str) -> Reads:
        found = [f"https.GET /items/{item}?all=1", "https://api.test"]
        return [found, ["http.GET /list\naccept: text/plain", "http://other.test:8080"], get("bench", item), found]

    event, other = {"http": "item-17"}, {"http": "item-42"}
    text = recorder.write(reads("item-17"), event, name="f", language=language)
    assert "a constant: no part of the request is a field of the event" in text
    wasm = build_text(text, language)
    services = dict.fromkeys(("https://api.test", "http://other.test:8080"), lambda method, body: method.encode())
    run = FakeEngine({("bench", "item-42"): b"1"}, json.dumps(other).encode(), services=services).run(wasm)
    assert run.reads() == reads("item-42")
    assert run.sent_before_waiting == 3


names = st.text(st.sampled_from('abcxyzé.-_ &"\\?'), min_size=3, max_size=8).filter(
    lambda name: name.strip(' .-_&?"\\')
)
Template = Callable[[dict[str, Any], Objects], Reads]


def whole(event: dict[str, Any], objects: Objects) -> Reads:
    return [get(event["bucket"], event["key"])]


def joined(event: dict[str, Any], objects: Objects) -> Reads:
    return [get(event["bucket"], f"{event['in']['prefix']}/{event['key']}.meta")]


def constant(event: dict[str, Any], objects: Objects) -> Reads:
    return [get(event["bucket"], 'models/"é\\?/weights.bin')]


def head(event: dict[str, Any], objects: Objects) -> Reads:
    return [["s3.HeadObject", event["bucket"], f"heads/{event['key']}"]]


def part(event: dict[str, Any], objects: Objects) -> Reads:
    return [["s3.GetObject", event["bucket"], event["in"]["prefix"], "bytes=0-1"]]


def every(event: dict[str, Any], objects: Objects) -> Reads:
    return [get(event["bucket"], f"{event['in']['prefix']}/{each['n.m']}") for each in event["parts"]]


def directory(event: dict[str, Any], objects: Objects) -> Reads:
    prefix = f"dirs/{event['in']['prefix']}/"
    keys = listed(objects, event["bucket"], prefix)
    pages = [["s3.ListObjectsV2", event["bucket"], prefix, *([str(at)] if at else [])] for at in range(0, len(keys), 3)]
    return [*pages, *(get(event["bucket"], key) for key in keys)]


def slice_of_list(event: dict[str, Any], objects: Objects) -> Reads:
    return [["s3.ListObjectsV2", event["bucket"], f"{event['in']['prefix']}/", "", "/", "10", event["key"]]]


def item(event: dict[str, Any], objects: Objects) -> Reads:
    return [["dynamodb.GetItem", json.dumps({"TableName": "t", "Key": {"k": {"S": event["key"]}, "n": {"N": "1"}}})]]


TEMPLATES: list[Template] = [whole, joined, constant, head, part, every, directory, slice_of_list, item]


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[tuple[str, str], bytes]]:
    """Draw an event, and what is in the buckets then. Its strings differ by their first letter."""
    bucket, prefix, key = (f"{mark}{draw(names)}" for mark in "BPK")
    parts = [{"n.m": f"N{number}{draw(names)}"} for number in range(draw(st.integers(2, 3)))]
    keys = [f"dirs/{prefix}/D{name}" for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))]
    event = {"bucket": bucket, "in": {"prefix": prefix}, "key": key, "parts": parts}
    return event, {(bucket, name): name.encode() for name in keys}


def normal(reads: Reads) -> Reads:
    """JSON within them by its meaning."""
    return [
        [*read[:-1], json.dumps(json.loads(read[-1]))] if read[0].startswith("dynamodb") else read for read in reads
    ]


@pytest.mark.parametrize("language", ["c", "rust"])
@given(data=st.data())
@settings(
    max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # to shrink would take minutes: it builds
def test_a_script_asks_for_what_the_function_reads_with_another_event(language: str, data: st.DataObject) -> None:
    if language == "rust":
        try:
            toolchain.find("rust")
        except toolchain.NoToolchain as error:
            pytest.skip(error.message)
    templates = data.draw(st.lists(st.sampled_from(TEMPLATES), min_size=1, max_size=5, unique=True))
    templates += data.draw(st.lists(st.sampled_from(templates), max_size=1))
    (event, objects), (other, others) = data.draw(situations()), data.draw(situations())
    recorded = [read for template in templates for read in template(event, objects)]
    text = recorder.write(recorded, event, name="f", language=language)
    wasm = build_text(text, language)
    services = {"dynamodb:": lambda method, body: body}
    for asked, there in ((event, objects), (other, others)):
        expected = [read for template in templates for read in template(asked, there)]
        run = FakeEngine(there, json.dumps(asked).encode(), page_keys=3, services=services).run(wasm)
        assert normal(run.reads()) == normal(expected), text
    assert not re.search(r"[^\x20-\x7e\n]", text)
