"""Plans: what an initscript has to ask for, made of what one start read and of its event.

Pure. Each step stands for one number of the storage library's count, or for as many as an array or a list has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sockd_initscripts.authoring.field_texts import (
    Fields,
    Text,
    arrays_of,
    comes_from_fields,
    element_of,
    is_constant,
    is_text,
    value_at,
)

Rpc = Sequence[str]
"""A descriptor: ["s3.GetObject", bucket, key]."""
GETS = "http.GET /", "https.GET /"
"""What a GET of HTTP begins with."""


@dataclass(frozen=True, slots=True)
class Get:
    """An object, or its head."""

    head: bool
    bucket: Text
    key: Text
    range: Text | None
    rpc: tuple[str, ...]
    """As recorded."""


@dataclass(frozen=True, slots=True)
class Each:
    """The same read for each element of an array of the event."""

    array: tuple[str | int, ...]
    count: int
    """Elements of the recorded one."""
    get: Get


@dataclass(frozen=True, slots=True)
class Listing:
    """A LIST of whose keys none is read, or only some that the event names."""

    bucket: Text
    prefix: Text
    rpc: tuple[str, ...]
    page: tuple[Text, ...] = ()
    """Continuation, delimiter, number of keys and start, each empty if it is not asked for; empty: all of them are."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A LIST, and a GET of each key that is listed."""

    bucket: Text
    prefix: Text
    pages: int
    """Recorded; the script asks for as many as there are."""
    keys: int
    rpc: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request to DynamoDB; the body is JSON, of which some strings are texts: where a part is one, its JSON stands."""

    method: str
    body: tuple[str | Text, ...]
    rpc: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A GET of HTTP."""

    address: str
    """The address of the server, as `https://host`."""
    method: Text
    """GET, the path, and a line for each header."""
    rpc: tuple[str, ...]
    connection: str = "http"
    """The name of what is open to the server; servers behind the first have a number behind it."""


@dataclass(frozen=True, slots=True)
class Again:
    """A read that was done before, as the step with this number."""

    step: int
    rpc: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A read that an initscript cannot do; its number stays free."""

    rpc: tuple[str, ...]


Step = Get | Each | Listing | Directory | Lookup | Fetch | Again | Unknown


def plan(reads: Sequence[Rpc], event: object) -> list[Step]:
    """What an initscript has to ask for, in the order of the numbers."""
    fields = Fields(event)
    steps: list[Step] = []
    at = 0
    while at < len(reads):
        directory = _directory(reads, at, fields)
        if directory is not None:
            steps.append(directory)
            at += directory.pages + directory.keys
            continue
        each = _each(reads, at, fields, event)
        if each is not None:
            steps.append(each)
            at += each.count
            continue
        steps.append(_again(reads[at], steps) or _single(reads[at], fields))
        at += 1
    servers = list(dict.fromkeys(step.address for step in steps if isinstance(step, Fetch)))
    return [_connected(step, servers.index(step.address)) if isinstance(step, Fetch) else step for step in steps]


def _connected(step: Fetch, place: int) -> Fetch:
    return replace(step, connection=f"http{place + 1 if place else ''}")


def _single(rpc: Rpc, fields: Fields) -> Get | Listing | Lookup | Fetch | Unknown:
    if not all(map(is_text, rpc)):
        return Unknown(tuple(rpc))
    match list(rpc):
        case ["s3.GetObject" | "s3.HeadObject" as method, bucket, key, *more] if len(more) <= 1:
            wanted = fields.explain(more[0]) if more else None
            return Get(method == "s3.HeadObject", fields.explain(bucket), fields.explain(key), wanted, tuple(rpc))
        case ["s3.ListObjectsV2", bucket, prefix]:
            return Listing(fields.explain(bucket), fields.explain(prefix), tuple(rpc))
        case ["s3.ListObjectsV2", bucket, prefix, token, *rare] if len(rare) in (0, 3):
            page = tuple(map(fields.explain, (token, *(rare or ["", "", ""]))))
            if token and not comes_from_fields(page[0]):  # S3 makes it: no other request has it
                return Unknown(tuple(rpc))
            return Listing(fields.explain(bucket), fields.explain(prefix), tuple(rpc), page)
        case ["dynamodb.GetItem" | "dynamodb.Query" as method, body]:
            return Lookup(method.partition(".")[2], tuple(_body(body, fields)), tuple(rpc))
        case [method, address] if method.startswith(GETS):
            return Fetch(address, fields.explain(method.partition(".")[2]), tuple(rpc))
    return Unknown(tuple(rpc))


def _again(rpc: Rpc, steps: Sequence[Step]) -> Again | None:
    """The same read once more, where the number of the first is certain: that is, before anything of unknown length."""
    for number, step in enumerate(steps):
        if isinstance(step, Each | Directory):
            return None
        if isinstance(step, Get | Listing | Lookup | Fetch) and step.rpc == tuple(rpc):
            certain = not any(isinstance(other, Each | Directory) for other in steps)
            return Again(number, tuple(rpc)) if certain else None
    return None


def _directory(reads: Sequence[Rpc], at: int, fields: Fields) -> Directory | None:
    """POLICY: a LIST and the GETs behind it are a directory if these have the LIST's prefix and order.

    One key may be all there was, or one that the function chose; it is taken for all unless the event names it."""
    if len(reads[at]) != 3 or reads[at][0] != "s3.ListObjectsV2":
        return None
    _, bucket, prefix = reads[at]
    if not (is_text(bucket) and is_text(prefix)):
        return None
    behind = at + 1
    while behind < len(reads) and list(reads[behind][:3]) == list(reads[at]) and len(reads[behind]) == 4:
        behind += 1
    pages, keys = behind - at, list[str]()
    for rpc in reads[behind:]:
        # In the order of their bytes, as S3 lists them.
        ordered = len(rpc) == 3 and all(map(is_text, rpc)) and (not keys or keys[-1].encode() < rpc[2].encode())
        if not ordered or rpc[0] != "s3.GetObject" or rpc[1] != bucket or not rpc[2].startswith(prefix):
            break
        keys.append(rpc[2])
    if all(comes_from_fields(fields.explain(key)) for key in keys):
        return None
    return Directory(fields.explain(bucket), fields.explain(prefix), pages, len(keys), tuple(reads[at]))


def _each(reads: Sequence[Rpc], at: int, fields: Fields, event: object) -> Each | None:
    """POLICY: reads that differ only in which element of an array they are made of, for all its elements in their order,
    are a loop over the array. Of an array of one, it is not: many events have a list of one record."""
    first = _single(reads[at], fields)
    if not isinstance(first, Get):
        return None
    for array, index in arrays_of([first.bucket, first.key]):
        count = len(value_at(event, array))
        if index != 0 or count < 2 or at + count > len(reads):
            continue
        loop = _of_element(first, array, 0)
        if all(_same_but_rpc(_of_element(_single(reads[at + n], fields), array, n), loop) for n in range(count)):
            return Each(array, count, loop)
    return None


def _of_element(step: Any, array: tuple[str | int, ...], index: int) -> Any:
    if not isinstance(step, Get):
        return step
    return replace(step, bucket=element_of(step.bucket, array, index), key=element_of(step.key, array, index))


def _same_but_rpc(step: object, other: Get) -> bool:
    return isinstance(step, Get) and replace(step, rpc=other.rpc) == other


def _body(body: str, fields: Fields) -> Iterator[str | Text]:
    """A JSON body in pieces: text as it is, and explained strings. One that is not JSON is one piece."""
    try:
        value = json.loads(body)
    except ValueError:
        yield body
        return
    written: list[str] = []
    for piece in _pieces(value, fields):
        if isinstance(piece, str):
            written.append(piece)
        else:
            yield "".join(written)
            written.clear()
            yield piece
    yield "".join(written)


def _pieces(value: object, fields: Fields) -> Iterator[str | Text]:
    if isinstance(value, dict):
        for number, (name, inner) in enumerate(value.items()):
            yield ("," if number else "{") + json.dumps(name) + ":"
            yield from _pieces(inner, fields)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield "," if number else "["
            yield from _pieces(inner, fields)
        yield "]" if value else "[]"
    elif isinstance(value, str) and not is_constant(text := fields.explain(value)):
        yield text
    else:
        yield json.dumps(value)
