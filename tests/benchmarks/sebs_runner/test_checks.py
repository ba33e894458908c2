"""The checks take right answers and refuse wrong ones."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sebs_runner.benches import BENCHES, find
from benchmarks.sebs_runner.checks import CHECKS, Check
from benchmarks.sebs_runner.errors import WrongAnswer
from benchmarks.sebs_runner.inputs import Input
from benchmarks.sebs_runner.made_inputs.jpeg import jpeg

Objects = dict[str, bytes]
TEMPLATE = b"<title>Numbers</title><p>Welcome {{username}}!</p>"


def check(name: str, event: dict[str, Any], objects: Objects | None = None, **more: Any) -> Check:
    """A check whose S3 is a dictionary."""
    written = objects if objects is not None else {}

    def take(key: str) -> bytes:
        if key not in written:
            raise WrongAnswer(f"no {key}")
        return written[key]

    published = more.pop("published", TEMPLATE)
    inputs = Input(event, more.pop("inputs", {}), more.pop("items", []))
    return Check(find(name), "test", inputs, take, lambda path: published, **more)


def refused(made: Check, answer: Any) -> bool:
    with pytest.raises(WrongAnswer) as caught:
        made(answer)
    return made.bench.id in caught.value.message


def test_every_bench_has_one() -> None:
    assert set(CHECKS) == {bench.id for bench in BENCHES}


@pytest.mark.parametrize("name", sorted(CHECKS))
@pytest.mark.parametrize("answer", [None, {}, [], "", {"key": "x", "bucket": "b"}])
def test_nonsense_is_a_wrong_answer_and_never_a_crash(name: str, answer: Any) -> None:
    assert refused(check(name, {"sleep": 1, "size": 10, "requests": [1], "random_len": 2, "bucket": {}}), answer)


def test_sleep() -> None:
    check("010", {"sleep": 1})(1)
    assert refused(check("010", {"sleep": 1}), 2)


def test_page() -> None:
    made = check("110", {"username": "me", "random_len": 2})
    page = "<title>Numbers</title><p>Welcome me!</p><li>1</li><li>2</li>"
    made(page)
    for wrong in (
        page.replace("<li>2</li>", ""),
        page.replace("<li>2</li>", "<li>1</li>"),
        page.replace("Welcome me", "Welcome {{username}}"),
        page.replace("Numbers", "Letters"),
        page.replace("<li>2", "<li>2000000"),
    ):
        assert refused(made, wrong)


def test_uploader() -> None:
    event = {"bucket": {"bucket": "b"}, "object": {"url": "u"}}
    made = check("120", event, {"k": b"served", "other": b"else"}, served=b"served")
    made({"bucket": "b", "url": "u", "key": "k"})
    for wrong in ({"key": "other"}, {"key": "none"}, {"url": "v"}, {"bucket": "c"}):
        assert refused(made, {"bucket": "b", "url": "u", "key": "k", **wrong})


def request(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "path": {"id": "p"}, "body": {"cart": "c", **body}}


def test_crud() -> None:
    there = {"cart_id": "c", "product_id": "p", "name": "there", "price": 40, "quantity": 3}
    put = request("PUT /cart", product_id="new", name="new", price=60, quantity=1)
    event = {"requests": [request("GET /cart/{id}"), request("GET /cart"), put, request("GET /cart")]}
    made = check("130", event, items=[("t", there)])
    one = {"products": ["there"], "total_cost": 40, "avg_price": 40 / 3}
    both = {"products": ["new", "there"], "total_cost": 100, "avg_price": 25.0}
    made([there, one, {}, both])
    made([there, both, {}, both])  # the invocation before it has put it there
    assert refused(made, [there, one, {}, one])  # what was written must be seen
    assert refused(made, [there, one, {}, {**both, "total_cost": 99}])
    assert refused(made, [{**there, "price": 1}, one, {}, both])
    assert refused(made, [there, one, {}])


def test_thumbnail(tmp_path: Path) -> None:
    (tmp_path / "in.jpg").write_bytes(jpeg(640, 320, 20_000, seed=1))
    objects = {
        "right": jpeg(208, 96, 5000, seed=1),
        "other": jpeg(208, 96, 5000, seed=2),
        "big": jpeg(320, 160, 9000, seed=1),
    }
    event = {"object": {"width": 208, "height": 208}}
    inputs = {"in.jpg": tmp_path / "in.jpg"}
    near = check(
        "210", {"object": {"width": 192, "height": 192}}, objects | {"t": jpeg(192, 96, 5000, seed=1)}, inputs=inputs
    )
    near({"key": "t"})
    assert refused(near, {"key": "big"})
    assert refused(check("210", event, objects, inputs=inputs), {"key": "right"})  # 208 x 104 would be right
    objects |= {"t": jpeg(192, 96, 5000, seed=1), "u": jpeg(192, 96, 5000, seed=2)}
    twice = check("210", {"object": {"width": 192, "height": 192}}, objects, inputs=inputs)
    twice({"key": "t"})
    assert refused(twice, {"key": "u"})  # the same picture gives the same thumbnail


def test_video() -> None:
    def movie(seconds: int) -> bytes:
        return (
            b"\0\0\0\x18ftypmp42" + b"\0\0\0\x6cmvhd" + bytes(12) + struct.pack(">II", 1000, seconds * 1000) + bytes(80)
        )

    made = check("220", {"object": {"duration": 1}}, {"right": movie(1), "long": movie(12), "gif": b"GIF89a" * 9})
    made({"key": "right"})
    assert refused(made, {"key": "long"})
    assert refused(made, {"key": "gif"})


def zipped(files: Objects) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def test_archive(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    inputs = {f"in/{name}": tmp_path / name for name in ("a", "b")}
    objects = {
        "right": zipped({"in/a": b"a", "in/b": b"b", "top.zip": b"itself, as shutil begins it in the same directory"}),
        "less": zipped({"in/a": b"a"}),
        "wrong": zipped({"in/a": b"a", "in/b": b"x"}),
        "more": zipped({"in/a": b"a", "in/b": b"b", "in/c": b"c"}),
        "none": b"no zip",
    }
    made = check("311", {}, objects, inputs=inputs)
    made({"key": "right"})
    for wrong in ("less", "wrong", "more", "none"):
        assert refused(made, {"key": wrong})


def test_recognition() -> None:
    made = check("411", {}, published=json.dumps({"7": ["n", "cock"], "8": ["n", "hen"]}).encode())
    made({"idx": 7, "class": "cock"})
    assert refused(made, {"idx": 7, "class": "hen"})
    assert refused(made, {"idx": 8, "class": "hen"})  # another class for the same picture
    own = check("imgrec", {})
    own({"idx": 5, "class": "class 5"})
    assert refused(own, {"idx": 5, "class": "class 6"})
    assert refused(own, {"idx": 1000, "class": "class 1000"})


@pytest.mark.parametrize(("name", "wrong"), [("501", 0.100001), ("502", 1)])
def test_graphs_have_known_values(name: str, wrong: float) -> None:
    made = check(name, {"size": 10, "seed": 42})
    made(0.1 if name == "501" else 0)
    assert refused(made, wrong)


def test_bfs_is_an_order_even_where_its_values_are_not_known() -> None:
    made = check("503", {"size": 4}, known=False)
    made([[0, 2, 1, 3], [0, 1, 3, 4], [0, 0, 0, 2]])
    for wrong in (
        [[0, 2, 1, 1], [0, 1, 3, 4], [0, 0, 0, 2]],
        [[0, 2, 1, 3], [0, 3, 1, 4], [0, 0, 0, 2]],
        [[0, 2, 1, 3], [0, 1, 3, 4], [0, 0, 0, 3]],
        [[0, 2, 1, 3], [0, 1, 3, 3], [0, 0, 0, 2]],
    ):
        assert refused(made, wrong)
    assert refused(check("503", {"size": 4}), [[0, 2, 1, 3], [0, 1, 3, 4], [0, 0, 0, 2]])


STEPS = {"A": (0.5, 0), "C": (-0.5, 0), "T": (-0.5, -1), "G": (0.5, 1)}


def squiggle(text: str) -> bytes:
    x, y = [n / 2 for n in range(2 * len(text) + 1)], [0.0]
    for letter in text:
        half, whole = STEPS.get(letter, (0, 0))
        y += [y[-1] + half, y[-1] + whole]
    return json.dumps([x, y]).encode()


def test_dna(tmp_path: Path) -> None:
    (tmp_path / "d").write_text(">x\nGATTACA\nGGG")
    objects = {
        "right": squiggle(">X\nGATTACA\nGGG"),
        "wrong": squiggle(">X\nGATTACA\nGGC"),
        "short": squiggle(">X\nGATTACA"),
    }
    made = check("504", {}, objects, inputs={"d": tmp_path / "d"})
    made({"key": "right"})
    assert refused(made, {"key": "wrong"})
    assert refused(made, {"key": "short"})
