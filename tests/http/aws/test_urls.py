"""The operations on function URLs, over real sockets in front of a fake worker."""

from __future__ import annotations

import re

import pytest

from tests.http.aws.conftest import request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw

pytestmark = pytest.mark.anyio
URL = "/2021-10-31/functions/slow/url"
CORS = {"AllowOrigins": ["https://a.example"], "AllowMethods": ["GET"], "MaxAge": 5}


async def test_a_url_from_its_making_to_its_end(client: Raw, worker: FakeLambda) -> None:
    reply = await client.ask(request("POST", URL, {"AuthType": "AWS_IAM", "Cors": CORS}))
    assert reply.status == 201
    made = reply.json
    url = worker.urls.of("slow")
    assert made["FunctionUrl"] == f"http://{url.id}.lambda-url.localhost:5000/"
    assert made["FunctionArn"].endswith(":function:slow")
    assert (made["AuthType"], made["InvokeMode"], made["Cors"]) == ("AWS_IAM", "BUFFERED", CORS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["CreationTime"])
    assert "LastModifiedTime" not in made

    found = (await client.ask(request("GET", URL))).json
    assert found == {**made, "LastModifiedTime": made["CreationTime"]}
    listed = (await client.ask(request("GET", URL + "s?MaxItems=1"))).json
    assert listed == {"FunctionUrlConfigs": [found]}

    changed = (await client.ask(request("PUT", URL, {"InvokeMode": "RESPONSE_STREAM"}))).json
    assert (changed["AuthType"], changed["InvokeMode"], changed["Cors"]) == ("AWS_IAM", "RESPONSE_STREAM", CORS)
    changed = (await client.ask(request("PUT", URL, {"AuthType": "NONE", "Cors": {}}))).json
    assert changed["AuthType"] == "NONE"
    assert "Cors" not in changed
    assert changed["FunctionUrl"] == made["FunctionUrl"]

    assert (await client.ask(request("DELETE", URL))).status == 204
    assert (await client.ask(request("GET", URL + "s"))).json == {"FunctionUrlConfigs": []}
    for method in ("GET", "PUT", "DELETE"):
        reply = await client.ask(request(method, URL, {}))
        assert (reply.status, reply.headers["x-amzn-errortype"]) == (404, "ResourceNotFoundException")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (URL, {}, 400, "InvalidParameterValueException"),
        (URL, {"AuthType": "JWT"}, 400, "InvalidRequestContentException"),
        (URL, {"AuthType": "NONE", "InvokeMode": "x"}, 400, "InvalidRequestContentException"),
        (URL, {"AuthType": "NONE", "Cors": {"AllowOrigins": ["a\r\nb"]}}, 400, "InvalidParameterValueException"),
        (URL + "?Qualifier=$LATEST", {"AuthType": "NONE"}, 400, "InvalidParameterValueException"),
        (URL.replace("slow", "none"), {"AuthType": "NONE"}, 404, "ResourceNotFoundException"),
    ],
)
async def test_what_cannot_be_made(
    client: Raw, worker: FakeLambda, path: str, body: object, status: int, kind: str
) -> None:
    reply = await client.ask(request("POST", path, body))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (status, kind)
    assert worker.urls.all_of("slow") == []


async def test_a_function_has_one(client: Raw, worker: FakeLambda) -> None:
    assert (await client.ask(request("POST", URL, {"AuthType": "NONE"}))).status == 201
    reply = await client.ask(request("POST", URL, {"AuthType": "NONE"}))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (409, "ResourceConflictException")
    assert len(worker.urls.all_of("slow")) == 1
