"""The API of function URLs: requests in, what the function makes of them out."""

from __future__ import annotations

import base64
import json

import pytest

from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.signer import Signer
from sockd.functions.registry.function_url import Cors
from sockd.functions.registry.policy import INVOKE_URL, Statement
from sockd.http.urls.url_api import INLINE_BYTES
from tests.http.aws.conftest import KEYS
from tests.http.raw import Raw, get
from tests.http.urls.conftest import MAX_PAYLOAD, UrlWorker, ask

pytestmark = pytest.mark.anyio
CORS = Cors(allow_origins=["https://page.example"], allow_methods=["PUT"])


async def test_a_request_by_name_and_by_path(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    worker.says({"statusCode": 201, "headers": {"X-A": "b"}, "cookies": ["a=1", "b=2"], "body": "made"})
    for prefix, host in (("", ""), (f"/url/{url.id}", "localhost")):
        reply = await client.ask(ask(url, "PUT", f"{prefix}/x/y?z=1", b"{}", "Content-Type: text/plain", host=host))
        assert (reply.status, reply.body) == (201, b"made")
        assert reply.headers["x-a"] == "b"
        assert reply.headers["x-amzn-requestid"] == worker.event["requestContext"]["requestId"]
        assert reply.headers["x-sockd-cold"] == "1"
        assert "server-timing" in reply.headers
        # Under a path of the port, a function's page must not be of the port's origin.
        assert reply.headers.get("content-security-policy", "").startswith("sandbox") is bool(prefix)
        event = worker.event
        assert (event["rawPath"], event["rawQueryString"], event["body"]) == ("/x/y", "z=1", "{}")
        assert event["requestContext"]["http"]["method"] == "PUT"
        assert event["requestContext"]["http"]["sourceIp"] == "127.0.0.1"
        assert event["requestContext"]["domainName"] == f"{url.id}.lambda-url.localhost"
        assert event["headers"]["host"] == host or f"{url.id}.lambda-url.localhost:5000"


async def test_a_target_may_name_scheme_and_host(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    for target in (f"http://localhost/url/{url.id}/x?z=1", f"http://{url.id}.lambda-url.localhost/x?z=1"):
        assert (await client.ask(get(target))).status == 200
        assert (worker.event["rawPath"], worker.event["rawQueryString"]) == ("/x", "z=1")


async def test_the_name_of_a_url_leads_to_its_function_alone(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    for path in ("/status", "/metrics", "/run/echo", "/2015-03-31/functions/", "/url/x/"):
        reply = await client.ask(ask(url, "GET", path))
        assert (reply.status, reply.body) == (200, b"{}")
        assert worker.event["rawPath"] == path
    assert {request.name for request in worker.asked} == {"says"}


async def test_a_policy_opens_and_closes_a_url_without_authorization(client: Raw, worker: UrlWorker) -> None:
    url, policies = await worker.urls.create("says"), worker.urls.policies

    async def status() -> int:
        return (await client.ask(ask(url, "GET", "/"))).status

    assert await status() == 200, "nobody has said anything"
    await policies.add("says", "", Statement("bucket", "lambda:InvokeFunction", "s3.amazonaws.com"))
    assert await status() == 200, "a statement about another caller does not close it"
    await policies.add("says", "", Statement("signed", INVOKE_URL, "*", "AWS_IAM"))
    assert await status() == 403, "of signed requests alone"
    await policies.add("says", "", Statement("public", INVOKE_URL, "*", "NONE"))
    assert await status() == 200
    await policies.remove("says", "", "public")
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
    assert reply.json["Message"].startswith("Forbidden.")
    asked = len(worker.asked)
    await policies.add("says", "", Statement("some", INVOKE_URL, "*", "NONE", source_account="123456789012"))
    assert await status() == 403, "nobody proves an account"
    await policies.add("says", "prod", Statement("other", INVOKE_URL, "*", "NONE"))
    assert await status() == 403, "the policy of an alias is not the function's"
    assert len(worker.asked) == asked


@pytest.mark.parametrize("id_", ["a" * 32, "", "A-_", "x" * 63])
async def test_a_url_that_no_one_has(client: Raw, worker: UrlWorker, id_: str) -> None:
    for request in (
        get(f"/url/{id_}/"),
        get("/").replace(b"Host: localhost", f"Host: {id_}.lambda-url.localhost".encode()),
    ):
        reply = await client.ask(request)
        assert (reply.status, reply.json) == (403, {"Message": None})
        assert reply.headers["x-amzn-errortype"] == "AccessDeniedException"


async def test_a_url_goes_with_its_function(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("slow")
    await worker.functions.remove("slow")
    assert (await client.ask(ask(url, "GET", "/"))).status == 403
    assert worker.asked == []


@pytest.mark.parametrize(
    "host", ["evil.example", "lambda-url.localhost.evil.example", "{id}.lambda-url.evil.example", "{id}.localhost.evil"]
)
async def test_a_page_that_rebinds_its_name_reaches_no_url(client: Raw, worker: UrlWorker, host: str) -> None:
    url = await worker.urls.create("says")
    for target in ("/", f"/url/{url.id}/"):
        reply = await client.ask(ask(url, "GET", target, host=host.format(id=url.id)))
        assert reply.status == 403
    assert worker.asked == []


async def test_a_service_worker_needs_a_name_of_its_own(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    for prefix, host, status in (("", "", 200), (f"/url/{url.id}", "localhost", 403)):
        reply = await client.ask(ask(url, "GET", f"{prefix}/sw.js", b"", "Service-Worker: script", host=host))
        assert reply.status == status


async def test_two_names_or_none_are_refused(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    reply = await client.ask(ask(url, "GET", "/", b"", "Host: localhost"))
    assert reply.status == 400
    reply = await client.ask(f"GET /url/{url.id}/ HTTP/1.1\r\n\r\n".encode())
    assert reply.status == 400


async def test_bodies_of_all_sizes_come_and_go_unchanged(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    for size in (1, INLINE_BYTES, INLINE_BYTES + 1):
        content = bytes(number % 251 for number in range(size))
        encoded = base64.b64encode(content).decode()
        worker.says({"statusCode": 200, "body": encoded, "isBase64Encoded": True})
        reply = await client.ask(ask(url, "POST", "/", content))
        assert base64.b64decode(worker.event["body"]) == content
        assert reply.body == content


async def test_what_is_too_large(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    reply = await client.ask(ask(url, "POST", "/", b"x" * (MAX_PAYLOAD + 1)))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (413, "RequestTooLargeException")
    chunked = ask(url, "POST", "/", b"", "Transfer-Encoding: chunked")
    for _ in range(4):
        chunked += b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
    reply = await client.ask(chunked + b"0\r\n\r\n")
    assert reply.status == 413
    # In base64 it is.
    assert (await client.ask(ask(url, "POST", "/", b"\xff" * (MAX_PAYLOAD - 1)))).status == 413
    assert worker.asked == []


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("raises", 502, "ValueError"),
        ("times_out", 502, "Sandbox.Timedout"),
        ("oom", 502, "Sandbox.OutOfMemory"),
        ("busy", 429, "TooManyRequestsException"),
        ("full", 503, "ServiceUnavailableException"),
        ("bug", 500, "ServiceException"),
    ],
)
async def test_what_goes_wrong(client: Raw, worker: UrlWorker, name: str, status: int, kind: str) -> None:
    worker.add(name)
    url = await worker.urls.create(name, cors=CORS)
    reply = await client.ask(ask(url, "GET", "/", b"", "Origin: https://page.example"))
    assert (reply.status, reply.headers["x-sockd-error"]) == (status, kind)
    if status == 502:
        assert reply.body == b"Internal Server Error"
        assert reply.headers["x-sockd-sandbox"] == "sandbox-7"
    assert ("retry-after" in reply.headers) is (status in (429, 503))
    assert reply.headers["access-control-allow-origin"] == "https://page.example"
    assert b"secret" not in reply.body


@pytest.mark.parametrize("answer", [b"{nonsense", b'{"statusCode": 700}', b'{"statusCode":200,"headers":{"a":"\\n"}}'])
async def test_an_answer_that_cannot_be_one(client: Raw, worker: UrlWorker, answer: bytes) -> None:
    url = await worker.urls.create("says")
    worker.answers = answer
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body) == (502, b"Internal Server Error")
    assert reply.headers["x-sockd-error"] == "Function.InvalidResponse"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body(client: Raw, worker: UrlWorker, status: int) -> None:
    url = await worker.urls.create("says")
    worker.says({"statusCode": status, "body": "not sent"})
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body) == (status, b"")
    assert "content-length" not in reply.headers
    worker.says({"statusCode": 419, "body": "next"})
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body) == (419, b"next")


async def test_a_preflight_is_answered_here_only_if_the_url_says_how(client: Raw, worker: UrlWorker) -> None:
    asks = ("Origin: https://page.example", "Access-Control-Request-Method: PUT")
    worker.says({"statusCode": 200, "headers": {"access-control-allow-origin": "own"}})
    url = await worker.urls.create("says", cors=CORS, auth="AWS_IAM")
    reply = await client.ask(ask(url, "OPTIONS", "/", b"", *asks))
    assert reply.status == 200
    assert reply.headers["access-control-allow-methods"] == "PUT"
    assert worker.asked == []
    await worker.urls.update(url, auth="NONE", mode="BUFFERED", cors=CORS)
    reply = await client.ask(ask(url, "GET", "/", b"", asks[0]))
    assert reply.headers["access-control-allow-origin"] == "https://page.example"
    await worker.urls.update(url, auth="NONE", mode="BUFFERED", cors=None)
    reply = await client.ask(ask(url, "OPTIONS", "/", b"", *asks))
    assert reply.headers["access-control-allow-origin"] == "own"
    assert worker.event["requestContext"]["http"]["method"] == "OPTIONS"


def signed(method: str, target: str, host: str, body: bytes, *, secret: str = KEYS["AKIDONE"]) -> bytes:
    fields = {"Host": host}
    Signer(Credentials("AKIDONE", secret), service="lambda").sign(method, target, fields, body)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1])
async def test_a_url_that_wants_a_signature(client: Raw, worker: UrlWorker, size: int) -> None:
    url = await worker.urls.create("says", auth="AWS_IAM")
    body = b"x" * size
    for host, prefix in ((f"{url.id}.lambda-url.localhost:5000", ""), ("localhost", f"/url/{url.id}")):
        target = f"{prefix}/a%20b/c?z=1&a="
        good = signed("POST", target, host, body)
        assert (await client.ask(good)).status == 200
        assert worker.event["requestContext"]["authorizer"]["iam"]["accessKey"] == "AKIDONE"
        assert "authorization" not in worker.event["headers"]
        ran = len(worker.asked)
        for bad in (
            good.replace(b"z=1", b"z=2"),
            good[:-1] + b"y",
            signed("POST", target, host, body, secret="not the secret of ours"),
            good.replace(b"AKIDONE", b"AKIDTHREE"),
            ask(url, "POST", target, body, host=host),
        ):
            reply = await client.ask(bad)
            assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
            assert reply.json["Message"].startswith("Forbidden. ")
        assert len(worker.asked) == ran


async def test_who_may_call_a_url_may_not_call_another_with_the_same_signature(client: Raw, worker: UrlWorker) -> None:
    one, other = [await worker.urls.create(name, auth="AWS_IAM") for name in ("says", "echo")]
    good = signed("GET", "/", f"{one.id}.lambda-url.localhost", b"")
    assert (await client.ask(good)).status == 200
    assert (await client.ask(good.replace(one.id.encode(), other.id.encode()))).status == 403


async def test_a_long_query_is_an_event_like_any(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says")
    query = "&".join(f"n{number}=1" for number in range(3000))
    assert (await client.ask(ask(url, "GET", f"/?{query}"))).status == 200
    assert len(worker.event["queryStringParameters"]) == 3000
    assert json.dumps(worker.event)


async def test_an_app_gets_the_request_itself(client: Raw, worker: UrlWorker) -> None:
    for auth in ("NONE", "AWS_IAM"):
        url = await worker.urls.create("says" if auth == "NONE" else "echo", auth=auth)
        for host, prefix in ((f"{url.id}.lambda-url.localhost:5000", ""), ("localhost", f"/url/{url.id}")):
            target = f"{prefix}/a%20b/c?z=1"
            await client.ask(signed("PUT", target, host, b"\xff\0"))
            as_http = worker.asked[-1].as_http
            assert as_http is not None
            http, body = as_http()
            assert (http["method"], http["raw_path"], http["query"]) == ("PUT", "/a%20b/c", "z=1")
            assert (http["root_path"], body) == (prefix, b"\xff\0")
            headers = dict(http["headers"])
            assert (headers["host"], headers["content-length"]) == (host, "2")
            assert ("authorization" in headers) is (auth == "NONE")
