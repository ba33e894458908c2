"""Endpoints and signatures, against AWS's own example, botocore unchanged, and a verifier that shares no code with it."""

from __future__ import annotations

import datetime
import errno
import hashlib
import json

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from sockd.base.sigv4 import canonical, signer, verifier
from sockd.base.sigv4.canonical import SignedRequest
from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcFailed
from sockd_initscripts.rpc.aws.endpoints import AwsService
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.peer import Request, peer

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[datetime.datetime]:
    """A clock for both; its one entry is the time."""
    clock = [datetime.datetime(2013, 5, 24)]
    monkeypatch.setattr(signer, "utc_now", lambda: clock[0].strftime("%Y%m%dT%H%M%SZ"))
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: clock[0])
    return clock


def lines(head: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:-2])


def test_the_example_of_the_documentation(now: list[datetime.datetime]) -> None:
    # docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html: GET Object
    service = AwsService("s3", KEYS | {"AWS_ENDPOINT_URL_S3": "https://examplebucket.s3.amazonaws.com"})
    signed = lines(service.head("GET", "/test.txt", {"range": "bytes=0-9"}))
    assert signed["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


@pytest.mark.parametrize("name", ["s3", "sqs", "dynamodb"])
@pytest.mark.parametrize("token", ["", "the/session+token="])
@pytest.mark.parametrize("base", ["/base/", "", "/a//b/./c/../d%20e~/"])
def test_it_is_botocores_signature_on_each_day(name: str, token: str, base: str, now: list[datetime.datetime]) -> None:
    env = KEYS | {
        "AWS_SESSION_TOKEN": token,
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": f"http://h:9{base}",
    }
    service = AwsService(name, env)
    kind = botocore.auth.S3SigV4Auth if name == "s3" else botocore.auth.SigV4Auth
    credentials = Credentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token or None)
    plain = kind(credentials, name, "eu-central-1")
    for day in (1, 2, 2, 1):
        now[0] = datetime.datetime(2030, 1, day)
        for method, target, body in (("GET", "/b/k?list-type=2&prefix=a%20b", b""), ("POST", "/", b'{"a": 1}')):
            fields = {"x-amz-target": "T.A", "if-match": '"two  spaces, \xe9"'}
            request = AWSRequest(method, f"http://h:9{base.rstrip('/')}{target}", {**fields, "host": "h:9"}, data=body)
            plain.add_auth(request)
            assert lines(service.head(method, target, fields, body)) == dict(request.headers.items())


def test_without_keys_nothing_is_signed() -> None:
    assert lines(AwsService("s3", {}).head("GET", "/b/k", {})) == {"host": "s3.us-east-1.amazonaws.com"}


@pytest.mark.parametrize(
    ("env", "authority"),
    [
        ({}, "sqs.us-east-1.amazonaws.com"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "x"}, "sqs.eu-west-1.amazonaws.com"),
        ({"AWS_ENDPOINT_URL": "http://a:1"}, "a:1"),
        ({"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_SQS": "https://b"}, "b"),
        ({"AWS_ENDPOINT_URL_S3": "http://a:1"}, "sqs.us-east-1.amazonaws.com"),
    ],
)
def test_endpoints(env: dict[str, str], authority: str) -> None:
    assert AwsService("sqs", env).origin.authority == authority


@pytest.mark.parametrize(
    "env",
    [
        {"AWS_ENDPOINT_URL": "ftp://a"},
        {"AWS_ENDPOINT_URL": "http://a\r\nx: y"},
        {"AWS_ENDPOINT_URL": "http://u:p@a"},
        {"AWS_ENDPOINT_URL": "http://a?q"},
        {"AWS_ACCESS_KEY_ID": "a\r\nx: y", "AWS_SECRET_ACCESS_KEY": "s"},
        {"AWS_SESSION_TOKEN": "a\nb"},
        {"AWS_REGION": "a b"},
    ],
)
def test_an_environment_cannot_write_lines_of_a_request(env: dict[str, str]) -> None:
    with pytest.raises(RpcFailed) as failure:
        AwsService("s3", env)
    assert failure.value.errno == errno.EINVAL


async def verified(request: Request) -> None:
    """Answers with the action's name if the signature holds."""
    service = {"AmazonSQS": "sqs", "DynamoDB_20120810": "dynamodb"}[request.headers["x-amz-target"].split(".")[0]]
    known = canonical.Credentials(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"])
    method, target, _ = request.line.split()
    verifier.Verifier(known, service=service).verify(
        SignedRequest(method, target, "", request.headers), hashlib.sha256(request.body).hexdigest()
    )
    request.answer(json.dumps([request.headers["x-amz-target"], request.body.decode()]).encode())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("address", "method", "body", "target"),
    [
        ("sqs:", "ReceiveMessage", b'{"QueueUrl": "q"}', "AmazonSQS.ReceiveMessage"),
        ("dynamodb:", "GetItem", b'{"Key": {"id": {"S": "\xc3\xa4"}}}', "DynamoDB_20120810.GetItem"),
        ("sqs:", "ListQueues", b"", "AmazonSQS.ListQueues"),
    ],
)
async def test_actions(
    pool: ConnectionPool, region: Region, address: str, method: str, body: bytes, target: str
) -> None:
    async with peer(verified) as server:
        dialer = Dialer(KEYS | {"AWS_ENDPOINT_URL": server.url}, EndpointPolicy(), pool)
        connection = dialer.connect(address)
        reply = await ask(connection, region, method, body)
        assert json.loads(content(reply)) == [target, (body or b"{}").decode()]
        assert server.requests[0].headers["content-type"] == "application/x-amz-json-1.0"
        expected = [f"dynamodb.{method}", body.decode()] if address == "dynamodb:" else [f"sqs.{method}", "sqs:"]
        assert connection.descriptor(method, body) == expected
        async with failing("malformed", errno.EINVAL):
            await ask(connection, region, "Receive\r\nMessage", body)


def test_the_time_is_spelled_anew_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signer, "_spelled", (0.0, "20130524T000000Z"))
    now_s = [9.0]
    monkeypatch.setattr("sockd.base.sigv4.signer.time.monotonic", lambda: now_s[0])
    assert signer.utc_now() == "20130524T000000Z"
    now_s[0] = 10.0
    assert signer.utc_now() > "20130524T000000Z"
