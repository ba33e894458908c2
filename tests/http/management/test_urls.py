"""Function URLs at the management API, over a real Unix socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.base.config import Config, FunctionUrlsConfig, LambdaApiConfig
from sockd.http.management import urls as management_urls
from sockd.http.management.api import LIMITS, Management
from sockd.http.server.listening.sockets import bind_unix
from sockd.http.server.server import HttpServer
from tests.http.aws.conftest import KEYS
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, Reply, get, post, raw

pytestmark = pytest.mark.anyio
PATH = "/functions/slow/url"


@pytest.fixture
def worker() -> FakeLambda:
    return FakeLambda()


@pytest.fixture
def config() -> Config:
    return Config(lambda_api=LambdaApiConfig(keys=KEYS))


@pytest.fixture
async def client(worker: FakeLambda, config: Config, tmp_path: Path) -> AsyncIterator[Raw]:
    app = Management(worker, config, tmp_path, management_urls.routes(worker, config)).app
    path = tmp_path / "sockd.sock"
    server = HttpServer(app, [bind_unix(path)], limits=LIMITS)
    await server.start()
    async with raw(str(path)) as client:
        yield client
    await server.aclose(0)


async def put(client: Raw, settings: object, path: str = PATH) -> Reply:
    return await client.ask(post(path, json.dumps(settings).encode()).replace(b"POST", b"PUT", 1))


async def test_putting_makes_a_url_and_changes_the_one_that_is_there(client: Raw, worker: FakeLambda) -> None:
    made = (await put(client, {})).json
    url = worker.urls.of("slow")
    assert made["url"] == f"http://{url.id}.lambda-url.localhost:5000/"
    assert made["path_url"] == f"http://127.0.0.1:5000/url/{url.id}/"
    assert (made["auth"], made["mode"], made["cors"]) == ("NONE", "BUFFERED", None)
    cors = {"AllowOrigins": ["*"]}
    changed = (await put(client, {"auth": "AWS_IAM", "cors": cors})).json
    assert (changed["id"], changed["auth"], changed["cors"]) == (made["id"], "AWS_IAM", cors)
    assert (await put(client, {})).json["auth"] == "AWS_IAM"
    listed = (await client.ask(get("/functions/slow/urls"))).json
    assert [each["id"] for each in listed] == [made["id"]]
    assert (await client.ask(get(PATH, method="DELETE"))).json == {"removed": "slow"}
    assert (await client.ask(get(PATH, method="DELETE"))).status == 404


@pytest.mark.parametrize(
    ("settings", "path", "status"),
    [
        ({"auth": "x"}, PATH, 400),
        ({"oath": "NONE"}, PATH, 400),
        ([], PATH, 400),
        ({"cors": {"AllowOrigins": ["x y"]}}, PATH, 400),
        ({}, "/functions/none/url", 404),
        ({}, "/functions/a.b/url", 400),
    ],
)
async def test_what_cannot_be(client: Raw, worker: FakeLambda, settings: object, path: str, status: int) -> None:
    assert (await put(client, settings, path)).status == status
    assert worker.urls.all_of("slow") == []


class TestWithoutKeys:
    @pytest.fixture
    def config(self) -> Config:
        return Config()

    async def test_no_one_could_sign(self, client: Raw) -> None:
        reply = await put(client, {"auth": "AWS_IAM"})
        assert (reply.status, "lambda_api.keys" in reply.json["errorMessage"]) == (400, True)


class TestSwitchedOff:
    @pytest.fixture
    def config(self) -> Config:
        return Config(function_urls=FunctionUrlsConfig(enabled=False))

    async def test_none_can_be_made(self, client: Raw) -> None:
        reply = await put(client, {})
        assert (reply.status, "function_urls" in reply.json["errorMessage"]) == (400, True)
