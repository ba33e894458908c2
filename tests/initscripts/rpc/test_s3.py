"""s3: against a server that verifies every signature, and against servers that change their minds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import random
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from sockd_initscripts.region import Region
from sockd_initscripts.rpc import Connection, ConnectionPool, Dialer, EndpointPolicy, RpcFailed, RpcLimits, RpcTiming
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.peer import Peer, Request, peer

pytestmark = pytest.mark.anyio
FIRST = 64 * 1024
PART = 16 * 1024
BODY = random.Random(1).randbytes(1_000_003)


@pytest.fixture
def limits() -> RpcLimits:
    """Small ranges, so that small objects have many; and no second requests where a machine is slow."""
    return RpcLimits(silence_s=5, hedge_s=30, first_range_bytes=FIRST, part_bytes=PART, parts=5)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Process]:
    with S3Process() as process:
        yield process


@pytest.fixture(scope="module")
def _client(s3: S3Process) -> Iterator[Client]:
    with s3.client() as client:
        client.requests()
        yield client


class Apart:
    """The client with its calls made in a thread, since they block."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return functools.partial(asyncio.to_thread, getattr(self._client, name))


@pytest.fixture
async def client(_client: Client) -> Apart:
    client = Apart(_client)
    await client.remove_faults()
    await client.forget_requests()
    return client


@pytest.fixture
async def bucket(client: Apart) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    await client.make_bucket(name)
    return name


@pytest.fixture
async def connection(s3: S3Process, pool: ConnectionPool) -> Connection:
    return Dialer(s3.env(), EndpointPolicy(), pool).connect("s3:")


@pytest.mark.parametrize("size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + PART, FIRST + 3 * PART + 1, len(BODY)])
async def test_objects_of_all_sizes(
    client: Apart, bucket: str, connection: Connection, region: Region, size: int
) -> None:
    await client.put(bucket, "key", BODY[:size])
    timing = RpcTiming()
    reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"}, timing)
    assert reply.status == 200
    assert content(reply) == BODY[:size]
    headers = reply.headers or {}
    assert (headers["content-length"], headers["etag"]) == (str(size), reply.etag), "those of one request"
    assert not headers.keys() & {"content-range", "transfer-encoding"}
    assert timing.bytes == size
    rest = size - FIRST
    assert timing.parts == 1 + (min(4, max(1, rest // PART)) if rest > 0 else 0)
    gets = [record["range"] for record in await client.requests() if record["method"] == "GET"]
    assert len(gets) == (2 if size == 0 else timing.parts)


async def test_times_are_those_of_the_first_request_and_of_the_last_byte(
    client: Apart, bucket: str, connection: Connection, region: Region
) -> None:
    await client.put(bucket, "key", BODY)
    timing = RpcTiming()
    await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"}, timing)
    first, *parts = sorted((r for r in await client.requests() if r["method"] == "GET"), key=lambda r: r["start_ns"])
    assert len(parts) == 4
    assert timing.sent_ns <= first["first_byte_ns"] <= timing.done_ns
    assert all(r["first_byte_ns"] <= timing.done_ns for r in parts)


@pytest.mark.parametrize(
    "key", ["a b", "ü/ß", "q?a=b&c", "x#y", "+~!*'()", "a//b", "/lead", "..", "a/../b", "%41", "x" * 900]
)
async def test_keys_of_all_kinds(client: Apart, bucket: str, connection: Connection, region: Region, key: str) -> None:
    await client.put(bucket, key, b"here")
    reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": key})
    assert (reply.status, content(reply)) == (200, b"here")


async def test_a_range_is_passed_through(client: Apart, bucket: str, connection: Connection, region: Region) -> None:
    await client.put(bucket, "key", BODY)
    for text, expected in (("bytes=5-9", BODY[5:10]), ("bytes=-3", BODY[-3:]), ("bytes=1000000-", BODY[-3:])):
        reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key", "range": text})
        assert (reply.status, content(reply)) == (206, expected)
    reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key", "range": "bytes=2000000-"})
    assert reply.status == 416
    assert b"InvalidRange" in content(reply)


async def test_head(client: Apart, bucket: str, connection: Connection, region: Region) -> None:
    etag = await client.put(bucket, "key", BODY)
    reply = await ask(connection, region, "HeadObject", {"bucket": bucket, "key": "key"})
    headers = json.loads(content(reply))
    assert (reply.status, headers["etag"], headers["content-length"]) == (200, etag, str(len(BODY)))
    assert (await ask(connection, region, "HeadObject", {"bucket": bucket, "key": "none"})).status == 404


async def test_a_version_is_unchanged_until_another_takes_its_place(
    client: Apart, bucket: str, connection: Connection, region: Region
) -> None:
    descriptor = ["s3.GetObject", bucket, "key"]
    for size in (5, FIRST + 1):
        await client.put(bucket, "key", BODY[:size])
        reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
        assert await connection.is_unchanged(descriptor, reply.etag)
        await client.put(bucket, "key", BODY[:size])
        assert await connection.is_unchanged(descriptor, reply.etag), "the same bytes are the same object"
        await client.put(bucket, "key", BODY[1 : size + 1])
        assert not await connection.is_unchanged(descriptor, reply.etag)
    await client.delete(bucket, "key")
    assert not await connection.is_unchanged(descriptor, reply.etag)
    assert not await connection.is_unchanged(["s3.ListObjectsV2", bucket, ""], '"any"')


async def test_a_list_is_unchanged_until_what_it_lists_changes(
    client: Apart, bucket: str, connection: Connection, region: Region
) -> None:
    descriptor = ["s3.ListObjectsV2", bucket, "d/"]
    await client.put(bucket, "d/one", b"1")
    reply = await ask(connection, region, "ListObjectsV2", {"bucket": bucket, "prefix": "d/"})
    assert await connection.is_unchanged(descriptor, reply.etag)
    await client.put(bucket, "e/other", b"1")
    assert await connection.is_unchanged(descriptor, reply.etag)
    await client.put(bucket, "d/one", b"2")
    assert not await connection.is_unchanged(descriptor, reply.etag)
    failed = await ask(connection, region, "ListObjectsV2", {"bucket": "no-such", "prefix": ""})
    assert (failed.status, failed.etag) == (404, "")
    assert not await connection.is_unchanged(["s3.ListObjectsV2", "no-such", ""], "any")


async def test_a_list_is_cut_and_folded_as_asked_for(
    client: Apart, bucket: str, connection: Connection, region: Region
) -> None:
    for key in ("d/one", "d/sub/two", "d/three", "d/z"):
        await client.put(bucket, key, b"1")
    asked = {"bucket": bucket, "prefix": "d/", "delimiter": "/", "max_keys": "2", "start_after": "d/one"}
    reply = await ask(connection, region, "ListObjectsV2", asked)
    page = ElementTree.fromstring(content(reply))
    assert [each.text for each in page.iterfind("{*}Contents/{*}Key")] == ["d/three"]
    assert [each.text for each in page.iterfind("{*}CommonPrefixes/{*}Prefix")] == ["d/sub/"]
    descriptor = connection.descriptor("ListObjectsV2", json.dumps(asked).encode())
    assert await connection.is_unchanged(descriptor, reply.etag)
    await client.put(bucket, "d/z", b"2")
    assert await connection.is_unchanged(descriptor, reply.etag), "it is behind the page"
    await client.put(bucket, "d/three", b"2")
    assert not await connection.is_unchanged(descriptor, reply.etag)


async def test_list_page_after_page(client: Apart, bucket: str, connection: Connection, region: Region) -> None:
    keys = [f"a b/{number:04}&" for number in range(1005)]
    for key in keys:
        await client.put(bucket, key, b"")
    await client.put(bucket, "other", b"")
    found: list[str] = []
    asked = {"bucket": bucket, "prefix": "a b/"}
    while True:
        page = ElementTree.fromstring(content(await ask(connection, region, "ListObjectsV2", asked)))
        found += [element.text or "" for element in page.iterfind("{*}Contents/{*}Key")]
        token = page.findtext("{*}NextContinuationToken")
        if not token:
            break
        asked["continuation"] = token
    assert found == keys


async def test_errors_are_replies(client: Apart, bucket: str, connection: Connection, region: Region) -> None:
    reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "none"})
    assert reply.status == 404
    assert b"NoSuchKey" in content(reply)
    await client.inject(bucket, status=503)
    assert (await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})).status == 503


async def test_a_wrong_key_is_refused_and_none_at_all_too(
    s3: S3Process, bucket: str, pool: ConnectionPool, region: Region
) -> None:
    anonymous = {"AWS_ENDPOINT_URL": s3.url}
    for env in (s3.env() | {"AWS_SECRET_ACCESS_KEY": "wrong"}, anonymous):
        reply = await ask(
            Dialer(env, EndpointPolicy(), pool).connect("s3:"), region, "GetObject", {"bucket": bucket, "key": "k"}
        )
        assert reply.status == 403


@pytest.mark.parametrize("skip", [0, 1], ids=["the first request", "a part"])
@pytest.mark.parametrize("fault", [{"truncate_after": 1000}, {"wrong_length": 5}, {"die_after_headers": True}])
async def test_a_server_that_breaks_off(
    client: Apart, bucket: str, connection: Connection, region: Region, fault: dict[str, object], skip: int
) -> None:
    await client.put(bucket, "key", BODY)
    await client.inject(bucket, skip=skip, **fault)
    with pytest.raises(RpcFailed) as failure:
        await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
    assert failure.value.errno in (errno.ECONNRESET, errno.EPROTO)
    assert region.charged_bytes == 0
    await client.remove_faults()
    assert content(await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})) == BODY


async def test_a_part_that_is_refused(client: Apart, bucket: str, connection: Connection, region: Region) -> None:
    await client.put(bucket, "key", BODY)
    await client.inject(bucket, skip=2, status=403)
    async with failing("rejected", errno.EPROTO):
        await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
    assert region.charged_bytes == 0


@pytest.mark.parametrize("skip", [0, 2], ids=["the first request", "a part"])
@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 503}, {"truncate_after": 1000}])
async def test_what_an_sdk_asks_for_again_is_asked_for_again(
    client: Apart, bucket: str, connection: Connection, region: Region, fault: dict[str, object], skip: int
) -> None:
    await client.put(bucket, "key", BODY)
    await client.inject(bucket, skip=skip, times=2 if skip == 0 else 1, **fault)
    reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
    assert (reply.status, content(reply)) == (200, BODY)


@pytest.mark.parametrize("skip", [0, 2], ids=["the first request", "a part"])
async def test_a_silent_server_is_asked_over_another_connection(
    s3: S3Process, client: Apart, bucket: str, region: Region, skip: int
) -> None:
    pool = ConnectionPool(RpcLimits(hedge_s=0.1, first_range_bytes=FIRST, part_bytes=PART, parts=5))
    connection = Dialer(s3.env(), EndpointPolicy(), pool).connect("s3:")
    await client.put(bucket, "key", BODY)
    await client.inject(bucket, skip=skip, times=1, delay_s=15)
    async with asyncio.timeout(10):
        reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
    assert (reply.status, content(reply)) == (200, BODY)
    await pool.aclose()


async def test_a_server_that_is_only_slow_answers_the_first_request(
    s3: S3Process, client: Apart, bucket: str, region: Region
) -> None:
    """The second is slower still, and is given up."""
    pool = ConnectionPool(RpcLimits(hedge_s=0.1))
    connection = Dialer(s3.env(), EndpointPolicy(), pool).connect("s3:")
    await client.put(bucket, "key", b"here")
    await client.inject(bucket, times=1, delay_s=0.5)
    await client.inject(bucket, delay_s=15)
    async with asyncio.timeout(10):
        reply = await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
    assert content(reply) == b"here"
    await pool.aclose()


async def test_an_object_that_the_region_has_no_room_for(client: Apart, bucket: str, connection: Connection) -> None:
    await client.put(bucket, "key", BODY)
    region = Region(500_000)
    with contextlib.closing(region):
        async with failing("region_full", errno.ENOSPC):
            await ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"})
        assert region.charged_bytes == 0


async def test_a_cancelled_read_leaves_no_part_behind(
    client: Apart, bucket: str, connection: Connection, region: Region, pool: ConnectionPool
) -> None:
    await client.put(bucket, "key", BODY)
    await client.inject(bucket, skip=1, delay_s=5)
    call = asyncio.create_task(ask(connection, region, "GetObject", {"bucket": bucket, "key": "key"}))
    while region.charged_bytes == 0:  # until the first head is in, whose reading allocates
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert region.charged_bytes == 0
    await pool.aclose()
    assert pool.open_count == 0


PARAMETERS = [
    ("PutObject", '{"bucket": "b", "key": "k"}'),
    ("GetObject", ""),
    ("GetObject", "[]"),
    ("GetObject", '{"bucket": "b"}'),
    ("GetObject", '{"bucket": "", "key": "k"}'),
    ("GetObject", '{"bucket": "b/c", "key": "k"}'),
    ("GetObject", '{"bucket": "b", "key": ""}'),
    ("GetObject", '{"bucket": "b", "key": 5}'),
    ("GetObject", '{"bucket": "b", "key": "k", "range": "bytes=0-1, 5-6"}'),
    ("GetObject", '{"bucket": "b", "key": "k", "range": "bytes=0-1\\r\\nx: y"}'),
    ("GetObject", '{"bucket": "b", "key": "k", "other": 1}'),
    ("ListObjectsV2", '{"prefix": "p"}'),
]


@pytest.mark.parametrize(("method", "body"), PARAMETERS)
async def test_parameters_that_make_no_sense(connection: Connection, region: Region, method: str, body: str) -> None:
    async with failing("malformed", errno.EINVAL):
        await ask(connection, region, method, body.encode())
    async with failing("malformed", errno.EINVAL):
        connection.descriptor(method, body.encode())


async def test_descriptors(connection: Connection) -> None:
    cases: list[tuple[str, dict[str, str], list[str]]] = [
        ("GetObject", {"bucket": "b", "key": "k"}, ["s3.GetObject", "b", "k"]),
        ("GetObject", {"bucket": "b", "key": "k", "range": "bytes=1-2"}, ["s3.GetObject", "b", "k", "bytes=1-2"]),
        ("HeadObject", {"bucket": "b", "key": "k"}, ["s3.HeadObject", "b", "k"]),
        ("ListObjectsV2", {"bucket": "b", "prefix": "p"}, ["s3.ListObjectsV2", "b", "p"]),
        ("ListObjectsV2", {"bucket": "b"}, ["s3.ListObjectsV2", "b", ""]),
        (
            "ListObjectsV2",
            {"bucket": "b", "prefix": "p", "continuation": "t"},
            ["s3.ListObjectsV2", "b", "p", "t"],
        ),
        (
            "ListObjectsV2",
            {"bucket": "b", "prefix": "p", "delimiter": "/"},
            ["s3.ListObjectsV2", "b", "p", "", "/", "", ""],
        ),
        (
            "ListObjectsV2",
            {"bucket": "b", "continuation": "t", "max_keys": "0", "start_after": "a"},
            ["s3.ListObjectsV2", "b", "", "t", "", "0", "a"],
        ),
    ]
    for method, asked, expected in cases:
        assert connection.descriptor(method, json.dumps(asked).encode()) == expected


class TestServersOfAnotherMind:
    """What only a server that is made for it does."""

    OLD, NEW = b"old" * 100_000, b"new" * 150_000

    def partial(self, request: Request, body: bytes, etag: str = '"e"', **changes: object) -> None:
        """The 206 that was asked for, with changed headers if they are given."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["range"])
        assert match
        start, end = int(match[1]), min(int(match[2]) + 1, len(body))
        headers = {"content_range": f"bytes {start}-{end - 1}/{len(body)}", "etag": etag, **changes}
        request.answer(body[start:end], 206, **{name: value for name, value in headers.items() if value})

    async def get(self, pool: ConnectionPool, server: Peer, region: Region, timing: RpcTiming | None = None) -> bytes:
        connection = Dialer({"AWS_ENDPOINT_URL": server.url}, EndpointPolicy(), pool).connect("s3:")
        reply = await ask(connection, region, "GetObject", {"bucket": "b", "key": "k"}, timing)
        assert reply.status == 200
        return content(reply)

    async def test_parts_are_on_their_way_at_once(self, pool: ConnectionPool, region: Region) -> None:
        """No part is answered before all have been asked for."""
        parts: list[Request] = []
        everybody = asyncio.Event()

        async def answer(request: Request) -> None:
            if "if-match" in request.headers:
                parts.append(request)
                if len(parts) == 4:
                    everybody.set()
                await everybody.wait()
            self.partial(request, BODY)

        async with peer(answer) as server:
            assert await self.get(pool, server, region) == BODY
        assert len(parts) == 4

    async def test_a_version_that_changes_meanwhile_is_read_anew(self, pool: ConnectionPool, region: Region) -> None:
        async def answer(request: Request) -> None:
            if len(server.requests) == 1:
                self.partial(request, self.OLD, '"old"')
            elif request.headers.get("if-match", '"new"') != '"new"':
                request.answer(b"<Code>PreconditionFailed</Code>", 412)
            else:
                self.partial(request, self.NEW, '"new"')

        async with peer(answer) as server:
            assert await self.get(pool, server, region) == self.NEW
            assert {r.headers.get("if-match") for r in server.requests} == {None, '"old"', '"new"'}

    async def test_a_version_that_keeps_changing_is_given_up(self, pool: ConnectionPool, region: Region) -> None:
        async def answer(request: Request) -> None:
            if "if-match" in request.headers:
                request.answer(b"<Code>PreconditionFailed</Code>", 412)
            else:
                self.partial(request, self.OLD)

        async with peer(answer) as server:
            async with failing("changed", errno.EPROTO):
                await self.get(pool, server, region)
            assert region.charged_bytes == 0
            assert len([r for r in server.requests if "if-match" not in r.headers]) == 2

    async def test_versions_are_not_mixed_where_if_match_is_unknown(self, pool: ConnectionPool, region: Region) -> None:
        async def answer(request: Request) -> None:
            self.partial(request, self.OLD, f'"{len(server.requests)}"')

        async with peer(answer) as server, failing("changed", errno.EPROTO):
            await self.get(pool, server, region)

    @pytest.mark.parametrize("etag", ["", 'W/"weak"'])
    async def test_without_a_strong_etag_it_is_asked_for_whole(
        self, pool: ConnectionPool, region: Region, etag: str
    ) -> None:
        async def answer(request: Request) -> None:
            if "range" in request.headers:
                self.partial(request, self.OLD, etag)
            else:
                request.answer(self.OLD)

        timing = RpcTiming()
        async with peer(answer) as server:
            assert await self.get(pool, server, region, timing) == self.OLD
        assert timing.parts == 1
        assert region.charged_bytes < 2 * len(self.OLD)

    async def test_a_server_that_knows_no_ranges(self, pool: ConnectionPool, region: Region) -> None:
        async def answer(request: Request) -> None:
            request.answer(self.OLD)

        async with peer(answer) as server:
            assert await self.get(pool, server, region) == self.OLD
            assert len(server.requests) == 1

    @pytest.mark.parametrize(
        "content_range",
        ["bytes 0-9/300000", "bytes 1-65536/300000", "bytes 0-65535/65535", "bytes 0-65535/99999999999999999999", "x"],
    )
    async def test_a_first_range_that_is_another_one(
        self, pool: ConnectionPool, region: Region, content_range: str
    ) -> None:
        async def answer(request: Request) -> None:
            if "range" in request.headers:
                self.partial(request, self.OLD, content_range=content_range)
            else:
                request.answer(b"no", 500)

        async with peer(answer) as server:
            try:
                assert await self.get(pool, server, region) == b""
            except RpcFailed as failure:
                assert failure.reason == "protocol"
            except AssertionError:
                assert "range" not in server.requests[-1].headers, "what is no range at all is not believed"
        assert region.charged_bytes <= 1 << 20

    @pytest.mark.parametrize("change", [{"content_range": "bytes 0-9/300000"}, {"content_range": ""}, {"etag": '"x"'}])
    async def test_a_part_that_is_another_one(
        self, pool: ConnectionPool, region: Region, change: dict[str, str]
    ) -> None:
        async def answer(request: Request) -> None:
            self.partial(request, self.OLD, **(change if "if-match" in request.headers else {}))

        async with peer(answer) as server:
            with pytest.raises(RpcFailed) as failure:
                await self.get(pool, server, region)
        assert failure.value.errno == errno.EPROTO
        assert region.charged_bytes == 0

    async def test_a_size_that_cannot_be(self, pool: ConnectionPool, region: Region) -> None:
        async def answer(request: Request) -> None:
            self.partial(request, self.OLD, content_range=f"bytes 0-{FIRST - 1}/999999999999999")

        async with peer(answer) as server, failing("region_full", errno.ENOSPC):
            await self.get(pool, server, region)
        assert region.charged_bytes == 0
