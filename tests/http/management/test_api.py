"""The management API over a real Unix socket."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import CodeConfig, Config
from sockd.base.telemetry import LogRecord
from sockd.http.management.api import LIMITS, Management
from sockd.http.server.listening.sockets import bind_unix
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.http.raw import Raw, Reply, get, post, raw

pytestmark = pytest.mark.anyio
MAX_ZIP = 3 << 20


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
async def client(worker: FakeWorker, tmp_path: Path) -> AsyncIterator[Raw]:
    (tmp_path / "tmp").mkdir()
    app = Management(worker, Config(code=CodeConfig(max_zip_bytes=MAX_ZIP)), tmp_path / "tmp").app
    path = tmp_path / "sockd.sock"
    server = HttpServer(app, [bind_unix(path)], limits=LIMITS)
    await server.start()
    async with raw(str(path)) as client:
        yield client
    await server.aclose(0)


def put(path: str, body: bytes, *headers: str) -> bytes:
    return post(path, body, *headers).replace(b"POST", b"PUT", 1)


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def lines(reply: Reply) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.body.splitlines()]


async def test_a_deploy_tells_its_progress_and_then_what_it_made(
    client: Raw, worker: FakeWorker, tmp_path: Path
) -> None:
    overrides = json.dumps({"memory_mb": 256, "env": {"K": "ü"}})
    reply = await client.ask(put("/functions/f", zipped(f="x" * 2_000_000), f"x-sockd-overrides: {overrides}"))
    assert reply.status == 200
    progress, result = lines(reply)
    assert progress == {"progress": "reading the archive"}
    assert result["result"]["name"] == "f"
    assert worker.deployed == {"f": (["f"], {"memory_mb": 256, "env": {"K": "ü"}})}
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_deploy_that_fails_ends_with_the_typed_error(client: Raw, tmp_path: Path) -> None:
    reply = await client.ask(put("/functions/f", b"not a zip"))
    last = lines(reply)[-1]
    assert (last["status"], last["error"]["errorType"]) == (400, "InvalidZipFileException")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (put("/functions/f", b""), 400),
        (put("/functions/f", b"z" * (MAX_ZIP + 1)), 413),
        (put("/functions/" + "n" * 65, b"z"), 400),
        (put("/functions/a.b", b"z"), 400),
        (put("/functions/f", b"z", "x-sockd-overrides: [1]"), 400),
        (put("/functions/f", b"z", "x-sockd-overrides: {"), 400),
        (get("/functions/unknown"), 404),
        (get("/functions/unknown", method="DELETE"), 404),
        (get("/functions/unknown/logs"), 404),
        (get("/functions/unknown/logs?follow=1"), 404),
        (get("/functions/echo/logs?limit=x"), 400),
        (get("/functions/echo/logs?limit=9999999"), 400),
        (get("/packages/unknown", method="DELETE"), 400),
        (post("/packages", b"\xff"), 400),
        (get("/nowhere"), 404),
        (get("/status", method="DELETE"), 405),
    ],
)
async def test_what_cannot_be_is_refused_with_a_typed_error_and_leaves_nothing(
    client: Raw, tmp_path: Path, request_bytes: bytes, status: int
) -> None:
    reply = await client.ask(request_bytes)
    assert reply.status == status
    assert reply.json["errorType"]
    assert reply.json["requestId"]
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_chunked_upload_is_limited_by_counting(client: Raw, tmp_path: Path) -> None:
    client.send(b"PUT /functions/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(MAX_ZIP // 65536 + 2):
        client.send(b"10000\r\n" + b"z" * 65536 + b"\r\n")
    assert (await client.reply()).status == 413
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_client_that_leaves_cancels_its_deploy(client: Raw, worker: FakeWorker, tmp_path: Path) -> None:
    client.send(put("/functions/slow", zipped(f="x")))
    await worker.started.wait()
    client.writer.transport.abort()
    await asyncio.wait_for(worker.cancelled.wait(), 5)
    assert worker.upload is not None
    assert not worker.upload.exists()


async def test_functions_are_listed_described_and_removed(client: Raw, worker: FakeWorker) -> None:
    listed = (await client.ask(get("/functions"))).json
    assert [function["name"] for function in listed] == sorted(worker.names)
    assert (await client.ask(get("/functions/echo"))).json == next(f for f in listed if f["name"] == "echo")
    assert (await client.ask(get("/functions/echo", method="DELETE"))).json == {"removed": "echo"}
    assert "echo" not in worker.names


async def test_an_invocation_answers_as_the_front_does(client: Raw) -> None:
    reply = await client.ask(post("/functions/echo/invoke", b"[1]"))
    assert (reply.status, reply.body, reply.headers["x-sockd-cold"]) == (200, b"[1]", "1")
    assert (await client.ask(post("/functions/times_out/invoke"))).status == 504


async def test_logs_are_read_by_request_and_number(client: Raw) -> None:
    records = (await client.ask(get("/functions/echo/logs?limit=2"))).json
    assert [record["request_id"] for record in records] == ["r0", "r1"]
    (record,) = (await client.ask(get("/functions/echo/logs?request_id=r2"))).json
    assert record["text"] == "line \\xff 2\n"


async def test_followed_logs_come_as_they_are_written_until_the_client_leaves(client: Raw, worker: FakeWorker) -> None:
    client.send(get("/functions/echo/logs?follow=1&limit=1"))
    await worker.following.wait()
    worker.records.put_nowait(LogRecord("r9", 1.0, b"new", 0))
    stream = client._reader
    head = await asyncio.wait_for(stream.readuntil(b"\r\n\r\n"), 5)
    assert b"200 OK" in head
    seen: list[str] = []
    while len(seen) < 2:
        line = await asyncio.wait_for(stream.readline(), 5)
        if line.startswith(b"{"):
            seen.append(json.loads(line)["request_id"])
    assert seen == ["r0", "r9"]
    client.writer.transport.abort()
    await asyncio.wait_for(worker.cancelled.wait(), 5)


async def test_a_deploy_may_bring_its_initscript_before_the_zip(client: Raw, worker: FakeWorker) -> None:
    wasm, code = b"\0asm\1\0\0\0" + bytes(100_000), zipped(f="x")
    body = wasm + code
    sent = put("/functions/echo", body, f"x-sockd-initscript-bytes: {len(wasm)}")
    assert b'"result"' in (await client.ask(sent)).body
    assert worker.initscripts["echo"] == wasm and worker.deployed["echo"][0] == ["f"]
    await client.ask(put("/functions/echo", code))
    assert worker.initscripts["echo"] is None


@pytest.mark.parametrize(
    ("size", "status", "words"),
    [
        ("x", 400, "must be a number"),
        ("-1", 400, "must be a number"),
        (str(2 << 20), 400, "the limit is 1048576"),
        ("99999", 400, "the body is empty"),
    ],
)
async def test_an_initscript_s_size_is_checked(client: Raw, size: str, status: int, words: str) -> None:
    reply = await client.ask(put("/functions/echo", zipped(f="x"), f"x-sockd-initscript-bytes: {size}"))
    assert reply.status == status and words in reply.json["errorMessage"]


async def test_an_initscript_is_sent_alone(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(put("/functions/echo/initscript", b"\0asm"))
    progress, last = lines(reply)
    assert progress == {"progress": "compiling the initscript"} and last["result"]["initscript"] == "cd" * 32
    assert worker.initscripts["echo"] == b"\0asm"
    refused = await client.ask(put("/functions/echo/initscript", b"MZ"))
    last = lines(refused)[-1]
    assert (last["status"], last["error"]["errorType"]) == (400, "InvalidInitscriptException")


async def test_a_recording_and_the_traces_are_served(client: Raw) -> None:
    recorded = (await client.ask(post("/functions/echo/record", b'{"a": 1}'))).json
    assert recorded["reads"][0]["rpc"] == ["s3.GetObject", "b", "k"]
    listed = (await client.ask(get("/traces?limit=5"))).json
    assert [trace["function"] for trace in listed] == ["imgrec"] and "spans" not in listed[0]
    shown = (await client.ask(get(f"/traces/{listed[0]['request_id']}"))).json
    assert shown["spans"][0]["track"] == "daemon"
    assert (await client.ask(get("/traces/ffff"))).status == 404
    assert (await client.ask(get("/traces?limit=x"))).status == 400


async def test_status_tree_and_packages_are_served(client: Raw) -> None:
    assert (await client.ask(get("/status"))).json["pid"] == 1
    assert (await client.ask(get("/tree"))).json["root"]["children"][0]["packages"] == ["numpy==2.3.0"]
    assert (await client.ask(get("/packages"))).json[0]["key"] == "numpy-2.3.0-abc"
    assert (await client.ask(get("/packages/numpy-2.3.0-abc", method="DELETE"))).status == 200


async def test_packages_are_forgiven_by_name_or_all(client: Raw) -> None:
    assert (await client.ask(post("/packages/forgive", b"numpy"))).json == {"forgiven": ["numpy-2.3.0-abc"]}
    assert (await client.ask(post("/packages/forgive", b""))).json == {"forgiven": ["numpy-2.3.0-abc"]}
    assert (await client.ask(post("/packages/forgive", b"other"))).json == {"forgiven": []}


async def test_packages_are_added_with_progress_and_the_resolvers_words(client: Raw) -> None:
    assert lines(await client.ask(post("/packages", b"numpy"))) == [
        {"progress": "resolving"},
        {"result": ["numpy-2.3.0-abc"]},
    ]
    last = lines(await client.ask(post("/packages", b"nonsense")))[-1]
    assert (last["status"], last["error"]["errorType"]) == (400, "Packages.ResolveFailed")
    assert "nonsense" in last["error"]["errorMessage"]


async def test_the_end_of_the_server_ends_a_followed_log_in_order(worker: FakeWorker, tmp_path: Path) -> None:
    server = HttpServer(Management(worker, Config(), tmp_path).app, [bind_unix(tmp_path / "s")], limits=LIMITS)
    await server.start()
    async with raw(str(tmp_path / "s")) as client:
        client.send(get("/functions/echo/logs?follow=1&limit=1"))
        await worker.following.wait()
        await server.aclose(0.1)
        assert (await client.rest()).endswith(b"0\r\n\r\n")
