"""The API in front of a fake worker: retries, limits, malformed bodies, and how errors look on the wire."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sockd.http.server.server import HttpServer
from tests.http.aws.conftest import request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, raw

pytestmark = pytest.mark.anyio
FUNCTIONS = "/2015-03-31/functions"
SLOW = f"{FUNCTIONS}/slow/invocations"


@pytest.fixture
async def other(server: HttpServer) -> AsyncIterator[Raw]:
    """A second connection."""
    async with raw(server.port) as client:
        yield client


def created(name: str = "new", content: bytes = b"PK...", **more: Any) -> dict[str, Any]:
    """The body of a CreateFunction."""
    code = {"ZipFile": base64.b64encode(content).decode()}
    return {"FunctionName": name, "Runtime": "python3.11", "Role": "r", "Handler": "a.b", "Code": code, **more}


async def test_an_error_has_a_type_and_two_spellings_of_its_message(client: Raw) -> None:
    reply = await client.ask(request("GET", f"{FUNCTIONS}/none"))
    assert reply.status == 404
    assert reply.headers["x-amzn-errortype"] == "ResourceNotFoundException"
    assert uuid.UUID(reply.headers["x-amzn-requestid"]).version == 4
    message = "Function not found: arn:aws:lambda:local:000000000000:function:none:$LATEST"
    assert reply.json == {"Type": "User", "Message": message, "message": message}


@pytest.mark.parametrize(
    ("name", "status", "code", "least_s"),
    [
        ("busy", 429, "TooManyRequestsException", 1),
        ("full", 503, "ServiceException", 1),
        ("storeless", 500, "ServiceException", 1),
        ("unread", 503, "ServiceException", 29),
    ],
)
async def test_what_may_work_later_says_when(client: Raw, name: str, status: int, code: str, least_s: int) -> None:
    for headers in ({}, {"X_Amz_Log_Type": "Tail"}) if name == "busy" else ({},):
        reply = await client.ask(request("POST", f"{FUNCTIONS}/{name}/invocations", {}, **headers))
        assert (reply.status, reply.headers["x-amzn-errortype"]) == (status, code)
        assert int(reply.headers["retry-after"]) >= least_s


async def test_a_bug_of_ours_is_reported_without_details(client: Raw) -> None:
    reply = await client.ask(request("POST", f"{FUNCTIONS}/bug/invocations", {}))
    assert (reply.status, reply.json["Type"]) == (500, "Service")
    assert b"secret" not in reply.body


async def test_a_log_tail_is_cut_to_its_end(client: Raw, worker: FakeLambda) -> None:
    worker.names.add("echo")
    reply = await client.ask(request("POST", f"{FUNCTIONS}/echo/invocations", {}, X_Amz_Log_Type="Tail"))
    text = base64.b64decode(reply.headers["x-amz-log-result"])
    assert len(text) == 4096
    assert b"x\nlast line\nEND RequestId: " in text
    assert b"Max Memory Used: 30 MB\tInit Duration: 3.00 ms\t\n" in text
    assert reply.headers["x-amz-executed-version"] == "v1"


async def test_no_content_has_no_length(client: Raw) -> None:
    reply = await client.ask(request("POST", SLOW, {}, X_Amz_Invocation_Type="DryRun"))
    assert reply.status == 204
    assert "content-length" not in reply.headers
    assert (await client.ask(request("GET", f"{FUNCTIONS}/slow"))).status == 200


async def test_a_retry_gets_the_answer_of_what_runs(
    client: Raw, other: Raw, server: HttpServer, worker: FakeLambda
) -> None:
    ask = request("POST", SLOW, {"n": 1}, amz_sdk_invocation_id="one")
    client.send(ask)
    await worker.started.wait()
    other.send(ask)
    worker.started.clear()
    # Another id, and another body under the same id, run on their own.
    async with raw(server.port) as third, raw(server.port) as fourth:
        third.send(request("POST", SLOW, {"n": 1}, amz_sdk_invocation_id="two"))
        await worker.started.wait()
        worker.started.clear()
        fourth.send(request("POST", SLOW, {"n": 2}, amz_sdk_invocation_id="one"))
        await worker.started.wait()
        worker.release.set()
        first, retry = await client.reply(), await other.reply()
        assert (first.status, first.body) == (200, b'{"n": 1}')
        assert (retry.body, retry.headers["x-amzn-requestid"]) == (first.body, first.headers["x-amzn-requestid"])
        assert (await fourth.reply()).body == b'{"n": 2}'
        assert (await third.reply()).headers["x-amzn-requestid"] != first.headers["x-amzn-requestid"]
    assert len(worker.invoked) == 3
    late = await client.ask(ask)
    assert (late.body, late.headers["x-sockd-replayed"]) == (first.body, "1")
    assert len(worker.invoked) == 3


async def test_what_was_refused_is_tried_again(client: Raw, worker: FakeLambda) -> None:
    ask = request("POST", f"{FUNCTIONS}/busy/invocations", {}, amz_sdk_invocation_id="one")
    assert [(await client.ask(ask)).status for _ in range(2)] == [429, 429]
    assert len(worker.invoked) == 2


async def test_an_event_is_accepted_and_not_run(client: Raw, worker: FakeLambda) -> None:
    reply = await client.ask(request("POST", SLOW, {"n": 1}, X_Amz_Invocation_Type="Event"))
    assert (reply.status, reply.body) == (202, b"")
    assert reply.headers["x-amzn-requestid"] == "00000001-0000-4000-8000-000000000000"
    reply = await client.ask(request("POST", "/2014-11-13/functions/slow/invoke-async", {"n": 2}))
    assert (reply.status, reply.json) == (202, {"Status": 202})
    assert worker.events.accepted == [("slow", "", b'{"n": 1}', "aws"), ("slow", "", b'{"n": 2}', "aws")]
    assert worker.invoked == []
    reply = await client.ask(request("POST", f"{FUNCTIONS}/none/invocations", {}, X_Amz_Invocation_Type="Event"))
    assert reply.status == 404
    worker.events.full = True
    reply = await client.ask(request("POST", SLOW, {"n": 1}, X_Amz_Invocation_Type="Event"))
    assert (reply.status, reply.json["Reason"]) == (429, "CallerRateLimitExceeded")


async def test_an_event_is_accepted_with_its_callers_trace(client: Raw) -> None:
    trace = "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"
    ask = request("POST", SLOW, {}, X_Amz_Invocation_Type="Event", X_Amzn_Trace_Id=trace)
    reply = await client.ask(ask)
    assert (reply.status, reply.headers["x-amzn-trace-id"]) == (202, trace)


async def test_a_client_that_went_away_is_answered_when_it_retries(
    client: Raw, other: Raw, server: HttpServer, worker: FakeLambda
) -> None:
    ask = request("POST", SLOW, {}, amz_sdk_invocation_id="one")
    client.send(ask)
    await worker.started.wait()
    client.writer.transport.abort()
    other.send(ask)
    async with raw(server.port) as third:
        assert (await third.ask(request("GET", f"{FUNCTIONS}/none"))).status == 404
    worker.release.set()
    assert (await other.reply()).status == 200
    assert len(worker.invoked) == 1


async def test_a_deploy_is_retried_into_itself_and_others_are_asked_to_wait(
    client: Raw, other: Raw, server: HttpServer, worker: FakeLambda
) -> None:
    worker.functions.holding = asyncio.Event()
    ask = request("POST", FUNCTIONS, created(), amz_sdk_invocation_id="one")
    client.send(ask)
    await worker.functions.deploying.wait()
    reply = await other.ask(request("POST", FUNCTIONS, created(), amz_sdk_invocation_id="two"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (409, "ResourceConflictException")
    other.send(ask)
    async with raw(server.port) as third:  # a whole exchange later the retry has been read as well
        assert (await third.ask(request("GET", f"{FUNCTIONS}/none"))).status == 404
    worker.functions.holding.set()
    first, retry = await client.reply(), await other.reply()
    assert (first.status, retry.status) == (201, 201)
    assert first.json == retry.json
    assert worker.functions.runs == 1


async def test_the_drains_end_answers_everybody(
    client: Raw, other: Raw, server: HttpServer, worker: FakeLambda
) -> None:
    ask = request("POST", SLOW, {}, amz_sdk_invocation_id="one")
    client.send(ask)
    await worker.started.wait()
    other.send(ask)
    async with raw(server.port) as third:
        await third.ask(request("GET", f"{FUNCTIONS}/none"))
    await server.aclose(0)
    for each in (client, other):
        reply = await each.reply()
        assert (reply.status, reply.headers["x-amzn-errortype"]) == (503, "ServiceException")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (FUNCTIONS, b"{", "InvalidRequestContentException"),
        (FUNCTIONS, b"[]", "InvalidRequestContentException"),
        (FUNCTIONS, {"FunctionName": 3}, "InvalidRequestContentException"),
        (FUNCTIONS, created(Description="\ud800"), "InvalidRequestContentException"),
        (FUNCTIONS, created() | {"Code": {"ZipFile": 3}}, "InvalidRequestContentException"),
        (FUNCTIONS, created() | {"Code": {"ZipFile": "a"}}, "InvalidRequestContentException"),
        (FUNCTIONS, created() | {"Code": {"ZipFile": "=AAA"}}, "InvalidRequestContentException"),
        (FUNCTIONS, created() | {"Code": {"ZipFile": "äöü="}}, "InvalidRequestContentException"),
        (FUNCTIONS, created(content=b""), "InvalidParameterValueException"),
        (FUNCTIONS, created() | {"Code": {}}, "InvalidParameterValueException"),
        (FUNCTIONS, created() | {"Code": {"S3Bucket": "b"}}, "InvalidParameterValueException"),
        (FUNCTIONS, created(Runtime="nodejs22.x"), "InvalidParameterValueException"),
        (FUNCTIONS, created(PackageType="Image"), "InvalidParameterValueException"),
        (FUNCTIONS, created(Layers=["a"]), "InvalidParameterValueException"),
        (FUNCTIONS, created(SnapStart={"ApplyOn": "Everything"}), "ValidationException"),
        (FUNCTIONS, created(VpcConfig={"SubnetIds": ["a"]}), "InvalidParameterValueException"),
        (FUNCTIONS, created(Architectures=["arm64"]), "InvalidParameterValueException"),
        (FUNCTIONS, created(Description="x" * 257), "InvalidParameterValueException"),
        (FUNCTIONS, created(Timeout=901), "InvalidParameterValueException"),
        (FUNCTIONS, created(Environment={"Variables": {"AWS_LAMBDA_X": "1"}}), "InvalidParameterValueException"),
        (FUNCTIONS, created(Tags={"x" * 129: ""}), "InvalidParameterValueException"),
        (FUNCTIONS, created("a b"), "ValidationException"),
        (FUNCTIONS, created("a" * 65), "ValidationException"),
        (f"{FUNCTIONS}/a%00b/invocations", {}, "ValidationException"),
        (f"{FUNCTIONS}/slow/invocations?Qualifier=a%20b", {}, "ValidationException"),
        (f"{FUNCTIONS}/slow/invocations?Qualifier=prod", {}, "ResourceNotFoundException"),
        (f"{FUNCTIONS}/slow/aliases", {"Name": "7", "FunctionVersion": "1"}, "ValidationException"),
        (f"{FUNCTIONS}/slow/aliases", {"Name": "a"}, "InvalidParameterValueException"),
        (f"{FUNCTIONS}/slow/aliases", {"Name": "a", "FunctionVersion": "b"}, "ValidationException"),
        (f"{FUNCTIONS}/slow:1/aliases", {"Name": "a", "FunctionVersion": "1"}, "InvalidParameterValueException"),
        (f"{FUNCTIONS}/slow/versions", {"CodeSha256": "x"}, "InvalidParameterValueException"),
        (f"{FUNCTIONS}/slow/versions", {"RevisionId": "x"}, "PreconditionFailedException"),
        (f"{FUNCTIONS}/slow/versions", {"Description": "x" * 257}, "InvalidParameterValueException"),
        (f"{FUNCTIONS}/slow/policy", {}, "InvalidRequestContentException"),
        ("/2018-10-31/layers/a/versions", {}, "UnknownOperationException"),
        ("/2", {}, "ResourceNotFoundException"),
        ("/20", {}, "UnknownOperationException"),
    ],
)
async def test_what_can_never_work_is_a_typed_error(
    client: Raw, worker: FakeLambda, path: str, body: object, code: str
) -> None:
    reply = await client.ask(request("POST", path, body))
    assert 400 <= reply.status < 500
    assert reply.json.get("errorType", reply.headers.get("x-amzn-errortype")) == code
    assert "new" not in worker.names
    assert (await client.ask(request("GET", f"{FUNCTIONS}/slow"))).status == 200


async def test_empty_structures_are_what_tools_send(client: Raw) -> None:
    nothing: dict[str, Any] = {
        "Layers": [],
        "VpcConfig": {"SubnetIds": [], "SecurityGroupIds": []},
        "DeadLetterConfig": {},
        "SnapStart": {"ApplyOn": "None"},
        "TracingConfig": {"Mode": "PassThrough"},
        "Publish": False,
    }
    assert (await client.ask(request("POST", FUNCTIONS, created(**nothing)))).status == 201


@pytest.mark.parametrize("text", [r"UEsuLi4\/", "UEsuLi4/"])
async def test_base64_with_escaped_slashes(client: Raw, text: str) -> None:
    body = json.dumps(created()).encode().replace(base64.b64encode(b"PK..."), text.encode())
    reply = await client.ask(request("POST", FUNCTIONS, body))
    assert (reply.status, reply.json["CodeSize"]) == (201, 6)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "size", "code"),
    [
        ("POST", SLOW, 100_001, "RequestTooLargeException"),
        ("PUT", f"{FUNCTIONS}/slow/configuration", 300_000, "RequestTooLargeException"),
    ],
)
async def test_what_is_too_large_is_refused(
    client: Raw, method: str, path: str, size: int, code: str, chunked: bool
) -> None:
    ask = request(method, path, b"x" * size)
    if chunked:
        head, _, body = ask.partition(b"\r\n\r\n")
        head = head.replace(f"Content-Length: {size}".encode(), b"Transfer-Encoding: chunked")
        ask = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    reply = await client.ask(ask)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (413, code)


async def test_an_upload_waits_unread_for_room_in_the_budget(
    client: Raw, other: Raw, worker: FakeLambda, server: HttpServer
) -> None:
    server.buffers.total = 400_000
    worker.functions.holding = asyncio.Event()
    client.send(request("POST", FUNCTIONS, created("one", b"PK" * 60_000)))
    await worker.functions.deploying.wait()
    second = request("POST", FUNCTIONS, created("two", b"PK" * 60_000))
    other.send(second)
    async with asyncio.timeout(5):
        while not server.buffers.waiting:
            await asyncio.sleep(0)
    assert server.buffers.used <= 400_000
    worker.functions.holding.set()
    assert (await client.reply()).status == 201
    assert (await other.reply()).status == 201


async def test_an_archive_of_many_pieces_arrives_whole(client: Raw, worker: FakeLambda) -> None:
    content = bytes(range(256)) * 10_001
    reply = await client.ask(request("POST", FUNCTIONS, created(content=content)))
    assert (reply.status, reply.json["CodeSize"]) == (201, len(content))
    assert worker.functions.details("new").record.code_bytes == len(content)
