"""Function URLs of a real worker: made by boto3 and the command line, called over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.daemon.running import REPO, Answer, RunningDaemon
from tests.support import sockd_template

pytestmark = pytest.mark.root
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CODE = """
import base64, os
def handler(event, context):
    what = event["rawPath"]
    if what == "/event":
        return event
    if what == "/raise":
        raise KeyError("no such thing")
    if what == "/exit":
        os._exit(3)
    if what == "/text":
        return "plain"
    if what == "/bytes":
        body = base64.b64decode(event["body"])
        return {"statusCode": 200, "body": base64.b64encode(body[::-1]).decode(), "isBase64Encoded": True}
    if what == "/split":
        return {"statusCode": 302, "headers": {"location": event["queryStringParameters"]["to"]}}
    return {"statusCode": 201, "headers": {"content-type": "text/html"}, "cookies": ["a=1", "b=2"], "body": "<p>made</p>"}
"""


@pytest.fixture(scope="module")
def config() -> str:
    return f'[lambda_api.keys]\n{KEY} = "{SECRET}"\n'


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Any]:
    session = boto3.Session(KEY, SECRET, region_name="eu-central-1")
    client = session.client("lambda", endpoint_url=daemon.url)
    yield client
    client.close()


@pytest.fixture
def function(daemon: RunningDaemon) -> Iterator[str]:
    daemon.deploy("f", {"handler.py": CODE})
    yield "f"
    daemon.remove("f")


def call(
    daemon: RunningDaemon, url: str, path: str = "/", body: bytes | None = None, *, method: str = "GET", **headers: str
) -> Answer:
    """Through the port, by the URL's name, whether or not that resolves here."""
    fields: Mapping[str, str] = {name.replace("_", "-"): value for name, value in headers.items()}
    return daemon.request(method, path, body, {"Host": urlsplit(url).netloc, **fields})


def test_a_url_that_boto3_makes(daemon: RunningDaemon, client: Any, function: str) -> None:
    made = client.create_function_url_config(FunctionName="f", AuthType="NONE", Cors={"AllowOrigins": ["*"]})
    url = made["FunctionUrl"]
    assert url.endswith(f".lambda-url.localhost:{daemon.port}/")
    assert client.get_function_url_config(FunctionName=made["FunctionArn"])["FunctionUrl"] == url
    assert [
        each["FunctionUrl"] for each in client.list_function_url_configs(FunctionName="f")["FunctionUrlConfigs"]
    ] == [url]

    answer = call(daemon, url)
    assert (answer.status, answer.body) == (201, b"<p>made</p>")
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["access-control-allow-origin"] == "*"
    event = call(daemon, url, "/event?a=1&a=2", b"hi", method="PUT", Cookie="x=y", Content_Type="text/plain").json
    assert (event["body"], event["cookies"], event["queryStringParameters"]) == ("hi", ["x=y"], {"a": "1,2"})
    assert event["headers"]["host"] == urlsplit(url).netloc
    assert call(daemon, url, "/text").body == b"plain"
    content = bytes(range(256)) * 4000
    assert call(daemon, url, "/bytes", content, method="POST").body == content[::-1]
    assert daemon.request("GET", f"/url/{urlsplit(url).netloc.partition('.')[0]}/").status == 201

    with pytest.raises(client.exceptions.ResourceConflictException):
        client.create_function_url_config(FunctionName="f", AuthType="NONE")
    client.delete_function_url_config(FunctionName="f")
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_function_url_config(FunctionName="f")
    assert (call(daemon, url).status, call(daemon, url).json) == (403, {"Message": None})


def test_what_goes_wrong_is_reported_without_words_of_the_function(
    daemon: RunningDaemon, client: Any, function: str
) -> None:
    url = client.create_function_url_config(FunctionName="f", AuthType="NONE")["FunctionUrl"]
    answer = call(daemon, url, "/raise")
    assert (answer.status, answer.body, answer.headers["x-sockd-error"]) == (502, b"Internal Server Error", "KeyError")
    assert "no such thing" not in str(answer.headers)
    assert call(daemon, url, "/exit").headers["x-sockd-error"] == "Runtime.ExitError"
    answer = call(daemon, url, "/split?to=/%0d%0aset-cookie:%20a=b")
    assert (answer.status, answer.headers["x-sockd-error"]) == (502, "Function.InvalidResponse")
    assert "set-cookie" not in answer.headers


def test_the_calls_of_a_first_apply(daemon: RunningDaemon, client: Any, function: str) -> None:
    """As Terraform makes them for a function, its public URL and the permission of that; and when it takes them back."""
    for read in (client.get_function_code_signing_config, client.get_runtime_management_config):
        assert read(FunctionName="f")["ResponseMetadata"]["HTTPStatusCode"] == 200
    url = client.create_function_url_config(FunctionName="f", AuthType="NONE")["FunctionUrl"]
    public = {"StatementId": "FunctionURLAllowPublicAccess", "Action": "lambda:InvokeFunctionUrl", "Principal": "*"}
    client.add_permission(FunctionName="f", **public, FunctionUrlAuthType="NONE")
    (statement,) = json.loads(client.get_policy(FunctionName="f")["Policy"])["Statement"]
    assert statement["Sid"] == "FunctionURLAllowPublicAccess"
    assert call(daemon, url).status == 201
    client.remove_permission(FunctionName="f", StatementId="FunctionURLAllowPublicAccess")
    assert call(daemon, url).status == 403
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_policy(FunctionName="f")
    assert client.list_event_source_mappings(FunctionName="f")["EventSourceMappings"] == []


def test_a_url_that_wants_a_signature(daemon: RunningDaemon, client: Any, function: str) -> None:
    url = client.create_function_url_config(FunctionName="f", AuthType="AWS_IAM")["FunctionUrl"]
    assert call(daemon, url).status == 403
    for secret, status in ((SECRET, 200), ("another secret than ours", 403)):
        asked = AWSRequest("POST", f"{url}event?b=2&a=1", headers={"Content-Type": "text/plain"}, data=b"hi")
        SigV4Auth(Credentials(KEY, secret), "lambda", "local").add_auth(asked)
        headers = {name.replace("-", "_"): value for name, value in asked.headers.items()}
        answer = call(daemon, url, "/event?b=2&a=1", b"hi", method="POST", **headers)
        assert answer.status == status, answer
    assert json.loads(answer.body)["Message"].startswith("Forbidden. ")


def test_the_url_of_an_alias_leads_where_the_alias_does(daemon: RunningDaemon, client: Any, function: str) -> None:
    number = client.publish_version(FunctionName="f")["Version"]
    client.create_alias(FunctionName="f", Name="prod", FunctionVersion=number)
    made = client.create_function_url_config(FunctionName="f", Qualifier="prod", AuthType="NONE")
    assert made["FunctionArn"].endswith(":function:f:prod")
    daemon.deploy("f", {"handler.py": "def handler(event, context): return [context.function_version, 'new']"})
    latest = client.create_function_url_config(FunctionName="f", AuthType="NONE")["FunctionUrl"]
    assert call(daemon, latest).json == ["$LATEST", "new"]
    assert call(daemon, made["FunctionUrl"], "/text").body == b"plain"
    client.delete_alias(FunctionName="f", Name="prod")
    assert call(daemon, made["FunctionUrl"], "/text").json == {"Message": None}
    urls = client.list_function_url_configs(FunctionName="f")["FunctionUrlConfigs"]
    assert [each["FunctionUrl"] for each in urls] == [latest]


def command(daemon: RunningDaemon, *arguments: str, status: int = 0) -> str:
    """What a command prints."""
    line = [sys.executable, "-m", "sockd", *arguments, "--state-dir", str(daemon.state)]
    run = sockd_template.run(line, cwd=REPO)
    assert run.returncode == status, run.stderr
    return run.stdout + run.stderr


def test_the_command_line_sends_requests_to_one(daemon: RunningDaemon, function: str) -> None:
    assert "sockd url f" in command(daemon, "curl", "f", "/event", status=1)
    command(daemon, "url", "f")
    event = json.loads(
        command(daemon, "curl", "f", "/event?a=1", "-X", "PUT", "-d", "hi", "-H", "Content-Type: text/plain")
    )
    assert (event["rawPath"], event["rawQueryString"], event["body"]) == ("/event", "a=1", "hi")
    assert event["requestContext"]["http"]["method"] == "PUT"
    answer = command(daemon, "curl", "f", "-i")
    assert answer.startswith("HTTP/1.1 201 Created\n") and answer.endswith("\n\n<p>made</p>")
    assert "KeyError" in command(daemon, "curl", "f", "raise", status=1)
    assert "NAME:VALUE" in command(daemon, "curl", "f", "-H", "x", status=2)
    assert "cannot be sent" in command(daemon, "curl", "f", "-H", "x: a\nb", status=2)


def test_the_command_line_makes_shows_and_removes_one(daemon: RunningDaemon, function: str) -> None:
    def sockd(*arguments: str) -> str:
        return command(daemon, "url", "f", *arguments)

    first = sockd().splitlines()
    url = first[0]
    assert first[1] == f"curl {url}"
    assert call(daemon, url).status == 201
    shown = json.loads(sockd("--auth", "iam", "--cors", "https://a.example", "--json"))
    assert (shown["url"], shown["auth"]) == (url, "AWS_IAM")
    assert call(daemon, url).status == 403
    sockd("--rm")
    assert call(daemon, url).json == {"Message": None}


def test_urls_survive_a_killed_daemon_and_go_with_their_function(tmp_path: Path) -> None:
    other = RunningDaemon.start(tmp_path / "state")
    try:
        other.deploy("g", {"handler.py": CODE})
        other.deploy("gone", {"handler.py": CODE})
        made = [json.loads(other.manage("PUT", f"/functions/{name}/url", b"{}").body) for name in ("g", "gone")]
        other.remove("gone")
        other.kill()
        other.end_reading()
        other = RunningDaemon.start(tmp_path / "state")
        assert other.request("GET", f"/url/{made[0]['id']}/text").body == b"plain"
        assert other.request("GET", f"/url/{made[1]['id']}/text").status == 403
    finally:
        other.close()


WSGI = """
def app(environ, start_response):
    start_response("207 So", [("X-Path", environ["SCRIPT_NAME"] + "|" + environ["PATH_INFO"]), ("Set-Cookie", "a=1")])
    yield environ["REQUEST_METHOD"].encode() + b" "
    yield environ["wsgi.input"].read()
"""
ASGI = """
async def app(scope, receive, send):
    body = (await receive())["body"]
    path = scope["root_path"] + "|" + scope["path"].removeprefix(scope["root_path"])
    headers = [(b"x-path", path.encode()), (b"set-cookie", b"a=1")]
    await send({"type": "http.response.start", "status": 207, "headers": headers})
    await send({"type": "http.response.body", "body": scope["method"].encode() + b" ", "more_body": True})
    await send({"type": "http.response.body", "body": body})
"""


@pytest.mark.parametrize("mode", ["BUFFERED", "RESPONSE_STREAM"])
@pytest.mark.parametrize("code", [WSGI, ASGI])
def test_a_web_app_behind_a_url_gets_the_request_itself(daemon: RunningDaemon, code: str, mode: str) -> None:
    daemon.deploy("web", {"app.py": code})
    try:
        made = daemon.manage("PUT", "/functions/web/url", json.dumps({"mode": mode}).encode()).json
        by_name = call(daemon, made["url"], "/a%20b?c=d", bytes(range(256)), method="PATCH")
        by_path = daemon.request("PATCH", f"/url/{made['id']}/a%20b?c=d", bytes(range(256)))
        assert (by_name.headers["x-path"], by_path.headers["x-path"]) == ("|/a b", f"/url/{made['id']}|/a b")
        for answer in (by_name, by_path):
            assert (answer.status, answer.body) == (207, b"PATCH " + bytes(range(256)))
            assert answer.headers["set-cookie"] == "a=1"
            assert ("content-length" in answer.headers) is (mode == "BUFFERED")
    finally:
        daemon.remove("web")
