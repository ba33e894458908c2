"""The API over real sockets in front of a fake worker, with keys or without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from sockd.base.config import Config, HttpConfig, LambdaApiConfig
from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.signer import Signer
from sockd.http.aws.access import Access
from sockd.http.aws.lambda_api import LambdaApi
from sockd.http.front import Front
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, raw

KEYS = {"AKIDONE": "0123456789abcdef0123", "AKIDTWO": "another secret of some length"}
HOST = "localhost"


def request(
    method: str, path: str, body: object = None, *, key: str | None = "AKIDONE", secret: str = "", **headers: str
) -> bytes:
    """A request as it is on the wire, signed unless `key` is None; `body`: bytes, or what becomes JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields = {"Host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if key is not None:
        credentials = Credentials(key, secret or KEYS.get(key, "unknown"))
        Signer(credentials, service="lambda").sign(method, path, fields, content)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


Opened = Callable[..., AbstractAsyncContextManager[Raw]]


@pytest.fixture
def worker() -> FakeLambda:
    return FakeLambda()


@pytest.fixture
async def server(worker: FakeLambda, tmp_path: Path) -> AsyncIterator[HttpServer]:
    """With keys."""
    async with serving(worker, tmp_path, KEYS) as server:
        yield server


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[Raw]:
    async with raw(server.port) as client:
        yield client


@pytest.fixture
async def keyless(worker: FakeLambda, tmp_path: Path) -> AsyncIterator[Raw]:
    """A client of a worker on loopback without keys."""
    async with serving(worker, tmp_path, {}) as server, raw(server.port) as client:
        yield client


@asynccontextmanager
async def serving(worker: FakeLambda, tmp: Path, keys: dict[str, str]) -> AsyncIterator[HttpServer]:
    http = HttpConfig(listen="127.0.0.1:0", max_payload_bytes=100_000)
    config = Config(http=http, lambda_api=LambdaApiConfig(keys=keys))
    api = LambdaApi(worker, Access.of(config.lambda_api, http), config, tmp)
    server = HttpServer(Front(worker, http, api), bind_tcp("127.0.0.1:0"))
    await server.start()
    try:
        yield server
    finally:
        await server.aclose(0)
        assert server.buffers.used == 0
