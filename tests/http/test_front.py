"""The public port over real sockets: what it answers, and what it refuses."""

from __future__ import annotations

import gc
import uuid
from collections.abc import AsyncIterator

import pytest

from sockd.base.config import HttpConfig
from sockd.http.access.host_check import may_come_from
from sockd.http.front import Front, FrontExchange
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.worker.listeners import open_without_key
from tests.http.fake_worker import FakeWorker
from tests.http.raw import Raw, get, post, raw
from tests.support.cases import case

pytestmark = pytest.mark.anyio
LIMIT = 200_000


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def front(worker: FakeWorker) -> Front:
    return Front(worker, HttpConfig(listen="127.0.0.1:0", max_payload_bytes=LIMIT))


@pytest.fixture
async def client(front: Front) -> AsyncIterator[Raw]:
    server = HttpServer(front, bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        yield client
    await server.aclose(0)


async def test_an_invocation_answers_with_the_handlers_bytes_and_its_phases(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(post("/run/echo", b'{"x": [1, 2]}'))
    assert (reply.status, reply.body) == (200, b'{"x": [1, 2]}')
    assert worker.invoked == [("echo", b'{"x": [1, 2]}')]
    headers = reply.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-sockd-cold"] == "1"
    assert headers["x-sockd-sandbox"] == "sandbox-7"
    assert headers["server-timing"] == "queue;dur=0.001, setup;dur=0.200, init;dur=3.000, exec;dur=0.040"
    assert uuid.UUID(headers["x-amzn-requestid"]).version == 4
    assert "date" in headers
    assert "server" not in headers


async def test_an_answered_request_is_no_garbage_that_has_to_be_looked_for(client: Raw) -> None:
    gc.collect()
    gc.disable()
    try:
        for name in ("echo", "odd"):  # begun without a task, and with one
            assert (await client.ask(post(f"/run/{name}"))).status in (200, 404)
        assert not [each for each in gc.get_objects() if isinstance(each, FrontExchange)]
    finally:
        gc.enable()


@pytest.mark.parametrize("request_bytes", [post("/run/echo", b""), get("/run/echo"), get("/run/echo?a=b")])
async def test_no_body_is_the_empty_event(client: Raw, worker: FakeWorker, request_bytes: bytes) -> None:
    assert (await client.ask(request_bytes)).status == 200
    assert worker.invoked == [("echo", b"{}")]


@pytest.mark.parametrize(
    ("name", "status", "error_type"),
    [
        ("raises", 500, "ValueError"),
        ("times_out", 504, "Sandbox.Timedout"),
        ("oom", 502, "Sandbox.OutOfMemory"),
        ("busy", 429, "TooManyRequestsException"),
        ("full", 503, "ServiceUnavailableException"),
        ("unread", 503, "Images.Unavailable"),
        ("bug", 500, "ServiceException"),
        ("unknown", 404, "ResourceNotFoundException"),
    ],
)
async def test_every_error_is_typed_json_with_its_own_status(
    client: Raw, name: str, status: int, error_type: str
) -> None:
    reply = await client.ask(post(f"/run/{name}"))
    assert (reply.status, reply.json["errorType"]) == (status, error_type)
    assert reply.json["requestId"] == reply.headers["x-amzn-requestid"]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-sockd-cold"] == ("1" if name in ("raises", "times_out", "oom", "full", "unread") else "0")
    assert reply.headers.get("retry-after") == {"busy": "2", "full": "1", "unread": "29"}.get(name)


async def test_what_a_handler_raised_arrives_even_if_it_is_not_unicode(client: Raw) -> None:
    reply = await client.ask(post("/run/raises"))
    assert reply.json["errorMessage"] == "no \\udcff good"
    assert reply.json["stackTrace"] == ['  File "/var/task/f.py", line 1\n']


async def test_a_bug_of_ours_tells_the_client_nothing_and_the_log_everything(
    client: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await client.ask(post("/run/bug"))
    assert "secret" not in reply.body.decode()
    assert "secret /path" in caplog.text
    assert reply.headers["x-amzn-requestid"] in caplog.text


async def test_a_payload_of_the_limit_passes_and_one_byte_more_does_not(client: Raw, worker: FakeWorker) -> None:
    assert (await client.ask(post("/run/echo", b"x" * LIMIT))).body == b"x" * LIMIT
    reply = await client.ask(post("/run/echo", b"x" * (LIMIT + 1)))
    assert (reply.status, reply.json["errorType"]) == (413, "RequestTooLargeException")
    assert len(worker.invoked) == 1
    assert (await client.ask(post("/run/echo", b"1"))).status == 200, "the connection lives on"


async def test_a_declared_giant_is_refused_before_it_is_sent(client: Raw) -> None:
    reply = await client.ask(b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
    assert reply.status == 413


async def test_a_chunked_body_arrives_whole(client: Raw, worker: FakeWorker) -> None:
    head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    big = b"y" * 100_000
    reply = await client.ask(head + b"3\r\n[1,\r\n%x\r\n%s\r\n2\r\n2]\r\n0\r\n\r\n" % (len(big), big))
    assert reply.body == b"[1," + big + b"2]"


async def test_a_chunked_body_over_the_limit_is_cut_off_by_counting(client: Raw) -> None:
    client.send(b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(LIMIT // 10_000 + 2):
        client.send(b"2710\r\n" + b"z" * 10_000 + b"\r\n")
    assert (await client.reply()).status == 413
    client.send(b"0\r\n\r\n")
    assert (await client.ask(post("/run/echo", b"1"))).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/run/",
        "/run/../status",
        "/run/%2e%2e/status",
        "/run/a%2fb",
        "/run/echo%00",
        "/run//echo",
        "//run/echo",
        "/run/../run/echo",
        "/run/echo%2f",
        "/run/" + "a" * 65,
        "/run/" + "a" * 8000,
        "/RUN/echo",
        "/run/\xe9cho",
        "/",
        "/functions",
        "/functions/echo",
        "/packages",
        "*",
    ],
)
async def test_a_bad_path_is_4xx_and_never_reaches_the_worker(client: Raw, worker: FakeWorker, path: str) -> None:
    reply = await client.ask(post(path, b"{}", "Connection: close"))
    assert reply.status in (400, 404)
    assert reply.json["errorType"]
    assert worker.invoked == []


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("PUT", "/run/echo", "GET, POST"), ("DELETE", "/run/echo", "GET, POST"), ("POST", "/status", "GET, HEAD")],
)
async def test_another_method_is_405_with_those_allowed(client: Raw, method: str, path: str, allow: str) -> None:
    reply = await client.ask(get(path, method=method))
    assert (reply.status, reply.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/healthz", "/status", "/metrics"])
async def test_head_of_a_page_is_its_head(client: Raw, path: str) -> None:
    wanted = await client.ask(get(path))
    client.send(get(path, "Connection: close", method="HEAD"))
    answer = (await client.rest()).decode()
    assert answer.startswith("HTTP/1.1 200 ") and answer.endswith("\r\n\r\n")
    if path != "/metrics":
        assert f"content-length: {len(wanted.body)}\r\n" in answer.lower()


async def test_a_query_is_for_those_that_see_one(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(post("/run/echo?a=1", b"{}", "X-Amz-Invocation-Type: Event"))
    assert (reply.status, reply.json["errorType"]) == (400, "InvalidRequestException")
    assert worker.events.accepted == []
    reply = await client.ask(post("/run/echo?", b"{}", "X-Amz-Invocation-Type: Event"))
    assert reply.status == 202


@case(
    "K31", "ask for http://evil.example/run/echo, with a Host that is right", expect="403, as for the Host of that name"
)
async def test_the_host_of_a_target_is_the_one_that_is_asked_for(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(post("http://evil.example/run/echo", b"1"))
    assert (reply.status, reply.json["errorType"]) == (403, "AccessDeniedException")
    assert worker.invoked == []
    named = b"POST HTTP://LOCALHOST:1/run/echo HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\n\r\n1"
    assert (await client.ask(named)).body == b"1"


async def test_head_is_refused_without_a_body(client: Raw) -> None:
    client.send(get("/run/echo", "Connection: close", method="HEAD"))
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:5000", "[::1]:80", "f.LOCALHOST:1", "127.9.9.9"])
async def test_loopback_answers_to_its_own_names(client: Raw, host: str) -> None:
    assert (await client.ask(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1", "\xff"]
)
async def test_loopback_refuses_names_that_were_rebound_to_it(client: Raw, worker: FakeWorker, host: str) -> None:
    reply = await client.ask(f"GET /run/echo HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    assert (reply.status, reply.json["errorType"]) == (403, "AccessDeniedException")
    assert worker.invoked == []


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 200), ("same-origin", 200), ("none", 200)]
)
async def test_pages_of_other_sites_invoke_nothing(client: Raw, worker: FakeWorker, site: str, status: int) -> None:
    reply = await client.ask(post("/run/echo", b"1", f"Sec-Fetch-Site: {site}"))
    assert (reply.status, len(worker.invoked)) == (status, int(status == 200))
    assert (await client.ask(get("/healthz", f"Sec-Fetch-Site: {site}"))).status == 200


@pytest.mark.parametrize("config", [HttpConfig(cross_site=True), HttpConfig(listen="0.0.0.0:5000")])
def test_pages_of_other_sites_may_be_let_in(config: HttpConfig) -> None:
    assert may_come_from(b"cross-site", b"POST", config)


async def test_http_1_1_needs_exactly_one_host(client: Raw) -> None:
    assert (await client.ask(b"GET /healthz HTTP/1.1\r\n\r\n")).status == 400
    assert (await client.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")).status == 400
    assert (await client.ask(b"GET /healthz HTTP/1.0\r\n\r\n")).status == 200


async def test_healthz_says_when_the_worker_drains(client: Raw, worker: FakeWorker) -> None:
    assert (await client.ask(get("/healthz"))).json == {"status": "ok"}
    worker.calls.draining = True
    reply = await client.ask(get("/healthz"))
    assert (reply.status, reply.json) == (503, {"status": "draining"})


async def test_status_and_metrics_are_served(client: Raw) -> None:
    assert (await client.ask(get("/status"))).json["pid"] == 1
    reply = await client.ask(get("/metrics"))
    assert reply.headers["content-type"].startswith("text/plain")
    assert b"x_total 1" in reply.body


async def test_refusals_are_counted_under_a_bounded_set_of_names(client: Raw, front: Front) -> None:
    for path in ("/a", "/b", "/run/c.d", "/run/unknown"):
        await client.ask(get(path))
    assert front.refused == {"ResourceNotFoundException": 2, "InvalidParameterValueException": 1}


async def test_a_function_finishes_although_its_client_has_gone(front: Front, worker: FakeWorker) -> None:
    server = HttpServer(front, bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        client.send(post("/run/slow"))
        await worker.started.wait()
    worker.release.set()
    await worker.finished.wait()
    await server.aclose(0)


async def test_a_trace_header_makes_a_request_no_task(client: Raw, worker: FakeWorker) -> None:
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for headers, begun in (
        ((), 1),
        ((parent,), 2),
        ((parent, "tracestate: a=b"), 3),
        ((parent, "X-Sockd-Fresh: 1"), 3),
    ):
        assert (await client.ask(post("/run/echo", b"1", *headers))).status == 200
        assert worker.begun == begun


async def test_an_event_is_accepted_and_not_run(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(post("/run/echo", b"[1]", "X-Amz-Invocation-Type: Event"))
    event_id = "00000001-0000-4000-8000-000000000000"
    assert (reply.status, reply.json, reply.headers["x-amzn-requestid"]) == (202, {"requestId": event_id}, event_id)
    assert worker.events.accepted == [("echo", "", b"[1]", "run")]
    assert (await client.ask(post("/run/none", b"", "X-Amz-Invocation-Type: Event"))).status == 404
    assert (await client.ask(post("/run/echo", b"", "X-Amz-Invocation-Type: DryRun"))).status == 400
    worker.events.full = True
    reply = await client.ask(post("/run/echo", b"[1]", "X-Amz-Invocation-Type: Event"))
    assert (reply.status, "retry-after" in reply.headers) == (429, True)
    assert worker.invoked == []


async def test_an_event_is_accepted_with_its_callers_trace(client: Raw) -> None:
    event = "X-Amz-Invocation-Type: Event"
    reply = await client.ask(
        post("/run/echo", b"[1]", event, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    )
    assert reply.status == 202
    assert (
        reply.headers["x-amzn-trace-id"] == "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"
    )
    refused = await client.ask(post("/run/echo", b"[1]", event, "traceparent: 00-0-0-01"))
    assert "x-amzn-trace-id" not in refused.headers


async def test_an_idempotency_key_runs_a_function_once(client: Raw, worker: FakeWorker) -> None:
    first = await client.ask(post("/run/echo", b"[1]", "Idempotency-Key: one"))
    again = await client.ask(post("/run/echo", b"[1]", "Idempotency-Key: one"))
    assert (again.body, again.headers["x-amzn-requestid"]) == (first.body, first.headers["x-amzn-requestid"])
    assert (await client.ask(post("/run/echo", b"[2]", "Idempotency-Key: one"))).status == 422
    assert (await client.ask(post("/run/echo", b"[2]", "Idempotency-Key: " + "x" * 256))).status == 400
    assert (await client.ask(post("/run/echo", b"[2]", "Idempotency-Key: two"))).status == 200
    # An alias is another function to a key: here one that is not there, and no answer of the function's.
    assert (await client.ask(post("/run/echo:live", b"[2]", "Idempotency-Key: two"))).status == 404
    assert len(worker.invoked) == 2


async def test_functions_that_share_an_address_have_no_service_workers(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(get("/run/echo", "Service-Worker: script"))
    assert (reply.status, worker.invoked) == (403, [])


async def test_a_new_sandbox_is_asked_for_by_a_header(client: Raw, worker: FakeWorker) -> None:
    reply = await client.ask(post("/run/echo", b"1", "X-Sockd-Fresh: 1"))
    assert reply.headers["server-timing"].startswith('cold;desc="asked for", queue;dur=')
    for value in ("0", "1"):
        await client.ask(post("/run/echo", b"1", f"X-Sockd-Fresh: {value}"))
    assert len(worker.invoked) == 3
    assert (await client.ask(post("/run/echo", b"1", "X-Sockd-Fresh: yes"))).status == 400
    later = await client.ask(post("/run/echo", b"1", "X-Sockd-Fresh: 1", "X-Amz-Invocation-Type: Event"))
    assert later.status == 400 and "asynchronous" in later.json["errorMessage"]
    assert not worker.events.accepted


@pytest.mark.parametrize("path", ["/run/echo", "/run/echo/x", "/status", "/metrics"])
async def test_what_needs_no_key_can_be_closed(path: str) -> None:
    server = HttpServer(
        Front(FakeWorker(), HttpConfig(run=False, status=False, metrics=False)), bind_tcp("127.0.0.1:0")
    )
    await server.start()
    async with raw(server.port) as client:
        assert (await client.ask(get(path))).status == (403 if path.startswith("/run") else 404)
        assert (await client.ask(get("/healthz"))).status == 200
    await server.aclose(0)


@pytest.mark.parametrize("target", ["echo:$LATEST", "echo:%24LATEST", "echo%3A$LATEST", "echo%3a%24LATEST", "echo%3A1"])
async def test_a_qualifier_may_be_quoted(client: Raw, worker: FakeWorker, target: str) -> None:
    reply = await client.ask(post(f"/run/{target}", b"5"))
    assert (reply.status, reply.json) == (200, 5)


@pytest.mark.parametrize("target", ["echo:%24OTHER", "echo:%2524LATEST", "echo%3B1", "echo%00", "e%63ho", "echo:%31"])
async def test_nothing_else_is_decoded(client: Raw, worker: FakeWorker, target: str) -> None:
    assert (await client.ask(post(f"/run/{target}", b"5"))).status == 400
    assert worker.invoked == []


def test_a_worker_that_others_reach_says_what_is_open_to_them() -> None:
    assert open_without_key(HttpConfig()) == ""
    reported = open_without_key(HttpConfig(listen="0.0.0.0:5000", status=False))
    assert reported == "/run (http.run = false closes it), /metrics (http.metrics = false closes it)"
    assert open_without_key(HttpConfig(listen="0.0.0.0:5000", run=False, status=False, metrics="keys")) == ""
