"""The API of function URLs over real sockets, in front of a fake worker whose functions answer what the test sets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sockd.base.config import Config, HttpConfig, LambdaApiConfig
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.functions.registry.function_url import FunctionUrl
from sockd.http.aws.access import Access
from sockd.http.aws.lambda_api import LambdaApi
from sockd.http.front import Front
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.http.urls.url_api import UrlApi
from tests.http.aws.conftest import KEYS
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.fake_worker import FakeCalls
from tests.http.raw import Raw, raw
from tests.http.worker_answers import ERRORS, invocation
from tests.support.memory_store import at_once

MAX_PAYLOAD = 300_000


class UrlCalls(FakeCalls):
    """As `FakeCalls`; answers for `says` and `streaming`."""

    def __init__(self, worker: UrlWorker) -> None:
        super().__init__(worker)
        self._urls = worker

    async def invoke(self, request: InvokeRequest) -> Invocation:
        self._urls.asked.append(request)
        if request.name == "streaming":
            return await self._answer_in_pieces(request)
        answer = await super().invoke(request)
        return invocation(self._urls.answers) if request.name == "says" else answer

    async def _answer_in_pieces(self, request: InvokeRequest) -> Invocation:
        sink = request.sink
        assert sink is not None
        sink.begun = invocation(b"")
        status, headers, pieces, fails = self._urls.in_pieces
        await sink.head(status, headers)
        for piece in pieces:
            if piece:
                await sink.chunk(piece)
            else:
                await self._urls.release.wait()
        if fails:
            raise ERRORS["raises"]()
        return msgspec.structs.replace(invocation(b""), streamed=True)


class UrlWorker(FakeLambda):
    """As `FakeLambda`; the functions `says` and `streaming` answer with what they were given here."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = UrlCalls(self)
        self.answers: bytes = b"{}"
        self.asked: list[InvokeRequest] = []
        self.in_pieces: tuple[int, list[tuple[bytes, bytes]], list[bytes], bool] = (200, [], [], False)
        self.release.set()
        self.add("says", "echo", "streaming")

    def add(self, *names: str) -> None:
        """Functions to have URLs."""
        self.names.update(names)
        for name in names:
            at_once(self.registry.put(name, digest="", code_bytes=0, handler="f:f", config="{}", closure=""))

    def streams(
        self, status: int, headers: list[tuple[bytes, bytes]], pieces: list[bytes], *, fails: bool = False
    ) -> None:
        """What `streaming` answers; where a piece is empty it waits for `release`."""
        self.in_pieces = status, headers, pieces, fails

    def says(self, value: object) -> None:
        self.answers = json.dumps(value).encode()

    @property
    def event(self) -> Any:
        """What the last request was for its function."""
        return json.loads(self.asked[-1].payload)


@pytest.fixture
def worker() -> UrlWorker:
    return UrlWorker()


@pytest.fixture
async def client(worker: UrlWorker, tmp_path: Path) -> AsyncIterator[Raw]:
    http = HttpConfig(listen="127.0.0.1:0", max_payload_bytes=MAX_PAYLOAD)
    config = Config(http=http, lambda_api=LambdaApiConfig(keys=KEYS))
    access = Access.of(config.lambda_api, http)
    front = Front(worker, http, LambdaApi(worker, access, config, tmp_path), UrlApi(worker, access.signatures, config))
    server = HttpServer(front, bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        yield client
    await server.aclose(0)


def ask(url: FunctionUrl, method: str, target: str, body: bytes = b"", *headers: str, host: str = "") -> bytes:
    """A request to a URL by its name."""
    host = host or f"{url.id}.lambda-url.localhost:5000"
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
