"""Whether a bench answered what it must: recomputed from its input without its packages, or compared with known values.

The published suite has no validators (they came later). What is proven, bench by bench, is said at each check. Where the
input is a stand-in, a function's answer can be as wrong as its data; its shape and its bytes are checked all the same.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

from benchmarks.sebs_runner.benches import Bench
from benchmarks.sebs_runner.errors import WrongAnswer
from benchmarks.sebs_runner.inputs import Input
from benchmarks.sebs_runner.made_inputs.jpeg import jpeg_size

PAGERANK = {10: 0.1, 10_000: 0.0012122480931530393, 100_000: 0.0003338443855258902}
BFS = {10: "f9d27b18bdca26ae", 10_000: "05bb96cd62524467", 100_000: "51f18e8c75b4cc43"}
"""The results of igraph 0.11.4 with the seed 42, by the number of vertices: the first rank; the start of the SHA-256 of the
JSON."""
PAGE = re.compile(r"<li>(\d+)</li>")
CLASSES = 1000


@dataclass(slots=True)
class Check:
    """Checks the answers to one input; called with what the function returned as its result."""

    bench: Bench
    size: str
    input: Input
    take: Callable[[str], bytes]
    """Gives an object that the function says it wrote, and removes it. Raises: WrongAnswer."""
    published: Callable[[str], bytes]
    """Gives a file of the bench's directory."""
    served: bytes | None = None
    """What 120 was given to download."""
    known: bool = True
    """Whether known values are of the packages in use: pins are bounds for a newer Python."""
    seen: dict[str, Any] = field(default_factory=dict)
    """Values of earlier answers that later ones must be equal to."""

    def __call__(self, result: Any) -> None:
        """Raises: WrongAnswer."""
        try:
            CHECKS[self.bench.id](self, result)
        except WrongAnswer as error:
            raise WrongAnswer(f"{self.bench.id}: {error.message}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, struct.error, zipfile.BadZipFile) as error:
            shown = repr(result)[:200]
            raise WrongAnswer(f"{self.bench.id}: {type(error).__name__}: {error} in the answer {shown}") from None

    def only_input(self) -> bytes:
        (path,) = self.input.objects.values()
        return path.read_bytes()

    def same_as_before(self, name: str, value: Any) -> None:
        expect(name, value, self.seen.setdefault(name, value))


def expect(name: str, actual: object, wanted: object) -> None:
    """Raises WrongAnswer unless both are equal."""
    if actual != wanted:
        raise WrongAnswer(f"{name}: {str(actual)[:200]!r} instead of {str(wanted)[:200]!r}")


def require(name: str, holds: bool) -> None:
    """Raises WrongAnswer unless it holds."""
    if not holds:
        raise WrongAnswer(name)


def sleep(check: Check, result: Any) -> None:
    expect("seconds", result, check.input.event["sleep"])


def page(check: Check, result: Any) -> None:
    """The published template with this name, and as many different numbers as were asked for."""
    numbers = [int(number) for number in PAGE.findall(result)]
    expect("different numbers", len(set(numbers)), check.input.event["random_len"])
    require("numbers below a million", max(numbers) < 1_000_000)
    template = check.published("python/templates/template.html").decode()
    greeting = f"Welcome {check.input.event['username']}!"
    require("the greeting", greeting in result and "{{" not in result)
    expect("the title", _title(result), _title(template))


def _title(html: str) -> str:
    found = re.search(r"<title>(.*?)</title>", html)
    return found[1] if found else ""


def uploader(check: Check, result: Any) -> None:
    """The object has the bytes that were served."""
    expect("bucket", result["bucket"], check.input.event["bucket"]["bucket"])
    expect("url", result["url"], check.input.event["object"]["url"])
    require("uploaded bytes", check.take(result["key"]) == check.served)


def crud(check: Check, result: Any) -> None:
    """Every answer follows from the rows that were there and those written before it, by this invocation or another."""
    rows = {(row["cart_id"], row["product_id"]): row for _, row in check.input.items}
    requests = check.input.event["requests"]
    puts = [request["body"] for request in requests if request["route"] == "PUT /cart"]
    every = rows | {(body["cart"], body["product_id"]): body for body in puts}
    expect("answers", len(result), len(requests))
    for request, answer in zip(requests, result, strict=True):
        body = request["body"]
        match request["route"]:
            case "PUT /cart":
                rows[body["cart"], body["product_id"]] = body
                expect("PUT /cart", answer, {})
            case "GET /cart/{id}":
                expect("GET /cart/{id}", answer, rows[body["cart"], request["path"]["id"]])
            case _:
                least, most = (
                    {row["name"]: row for (cart, _), row in some.items() if cart == body["cart"]}
                    for some in (rows, every)
                )
                _cart(answer, least, most)


def _cart(answer: Mapping[str, Any], least: dict[str, Any], most: dict[str, Any]) -> None:
    """As the published version sums up: prices are not multiplied by quantities."""
    names = answer["products"]
    require(f"products {names}", set(least) <= set(names) <= set(most) and len(set(names)) == len(names))
    total, count = (sum(most[name][of] for name in names) for of in ("price", "quantity"))
    expect("total_cost", answer["total_cost"], total)
    expect("avg_price", answer["avg_price"], total / count if count else 0.0)


def thumbnail(check: Check, result: Any) -> None:
    """A JPEG of the input's shape whose longer side is the wanted one; the same bytes each time."""
    (key,) = check.input.objects
    wanted = check.input.event["object"]
    width, height = jpeg_size(check.input.objects[key].read_bytes())
    picture = check.take(result["key"])
    scale = min(wanted["width"] / width, wanted["height"] / height)
    try:
        got = jpeg_size(picture)
    except ValueError as error:
        raise WrongAnswer(str(error)) from None
    require(f"size {got}", all(abs(a - b * scale) <= 1 for a, b in zip(got, (width, height), strict=True)))
    check.same_as_before("the thumbnail's bytes", sha256(picture).hexdigest())


def video(check: Check, result: Any) -> None:
    """An MP4 as long as was asked for."""
    movie = check.take(result["key"])
    expect("file type", movie[4:8], b"ftyp")
    start = movie.index(b"mvhd") + 4
    require("movie header of version 0", movie[start] == 0)
    scale, duration = struct.unpack_from(">II", movie, start + 12)
    wanted = check.input.event["object"]["duration"]
    require(f"{duration / scale} s instead of {wanted} s", abs(duration / scale - wanted) < 0.2)


def archive(check: Check, result: Any) -> None:
    """The zip holds the inputs, names and bytes."""
    with zipfile.ZipFile(io.BytesIO(check.take(result["key"]))) as packed:
        files = {info.filename: info for info in packed.infolist() if not info.is_dir()}
        found = {name.removeprefix("./") for name in files}
        own = {name for name in found if name.endswith(".zip") and name not in check.input.objects}
        expect("names", sorted(found - own), sorted(check.input.objects))
        for name in files:
            if (path := check.input.objects.get(name.removeprefix("./"))) is not None:
                require(f"the bytes of {name}", packed.read(name) == path.read_bytes())


def recognition(check: Check, result: Any) -> None:
    """A class of ImageNet with its own name, and the same one each time."""
    names = json.loads(check.published("python/imagenet_class_index.json"))
    expect("class", result["class"], names[str(result["idx"])][1])
    check.same_as_before("class index", result["idx"])


def own_recognition(check: Check, result: Any) -> None:
    require(f"class {result['idx']}", 0 <= result["idx"] < CLASSES)
    expect("class", result["class"], f"class {result['idx']}")
    check.same_as_before("class index", result["idx"])


def pagerank(check: Check, result: Any) -> None:
    """igraph's own value for this seed."""
    require(f"rank {result}", 0 < result < 1)
    if check.known:
        wanted = PAGERANK[check.input.event["size"]]
        require(f"rank {result} instead of {wanted}", abs(result - wanted) < 1e-9)
    check.same_as_before("rank", round(result, 12))


def spanning_tree(check: Check, result: Any) -> None:
    """The first edge of the tree: in a graph that is connected, the first edge of all."""
    expect("first edge", result, 0)


def bfs(check: Check, result: Any) -> None:
    """A breadth-first order: each vertex once, level after level, its parent one level up; and igraph's own values."""
    vertices, starts, parents = result
    count = check.input.event["size"]
    expect("vertices", sorted(vertices), list(range(count)))
    require("levels", starts[0] == 0 and starts[-1] == count and starts == sorted(starts))
    level = {vertex: depth for depth, (start, end) in enumerate(pairwise(starts)) for vertex in vertices[start:end]}
    require("parents", all(level[parents[vertex]] == level[vertex] - 1 for vertex in vertices[1:]))
    if check.known:
        expect("digest", sha256(json.dumps(result).encode()).hexdigest()[:16], BFS[count])


def dna(check: Check, result: Any) -> None:
    """Both coordinates of a line with two steps per letter, which ends as far up as there are more Gs than Ts."""
    letters = check.only_input().upper()
    data = check.take(result["key"])
    half = data.index(b"], [")
    expect("x", data[:20], b"[[0.0, 0.5, 1.0, 1.5"[:20])
    points = 2 * len(letters) + 1
    expect("points", (data.count(b", ", 0, half) + 1, data.count(b", ", half + 4) + 1), (points, points))
    end = float(data.rpartition(b", ")[2].rstrip(b"]"))
    expect("the end", end, float(letters.count(b"G") - letters.count(b"T")))


CHECKS: dict[str, Callable[[Check, Any], None]] = {
    "010.sleep": sleep,
    "110.dynamic-html": page,
    "120.uploader": uploader,
    "130.crud-api": crud,
    "210.thumbnailer": thumbnail,
    "220.video-processing": video,
    "311.compression": archive,
    "411.image-recognition": recognition,
    "501.graph-pagerank": pagerank,
    "502.graph-mst": spanning_tree,
    "503.graph-bfs": bfs,
    "504.dna-visualisation": dna,
    "imgrec": own_recognition,
    "imgrec-wasm": own_recognition,
}
