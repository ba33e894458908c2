"""Whether the program of a service answers as it should: a GET of its health path, again and again. Owns nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sockd.base.errors import SockdError
from sockd.base.invoke_request import Sink
from sockd.functions.code.service_config import ServiceConfig
from sockd.functions.services.http_relay import relay
from sockd.functions.services.program_connection import ProgramConnection

FAILURES = 3
"""POLICY: so many in a row make a program unhealthy: one may have met a pause of the host."""
HEALTHY = range(200, 400)


class _Status(Sink):
    """The status of an answer, whose body is dropped."""

    status = 0

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status

    async def chunk(self, data: bytes) -> None:
        """Nothing of it is needed."""


async def until_unhealthy(
    connect: Callable[[], Awaitable[ProgramConnection]], settings: ServiceConfig, port: int
) -> str:
    """Wait until a program is not healthy. Returns: why. Args: connect: makes a connection to its port, which is `port`."""
    failures, why = 0, ""
    while failures < FAILURES:
        await asyncio.sleep(settings.health_s)
        why = await why_unhealthy(connect, settings, port)
        failures = failures + 1 if why else 0
    return f"it is not healthy: GET {settings.health_path} on port {port} {why}, {FAILURES} times in a row"


async def why_unhealthy(connect: Callable[[], Awaitable[ProgramConnection]], settings: ServiceConfig, port: int) -> str:
    """Ask once. Returns: what came instead of a good answer; empty: it is healthy."""
    asked: dict[str, Any] = {"method": "GET", "raw_path": settings.health_path, "query": "", "root_path": ""}
    asked["headers"] = [["host", f"localhost:{port}"], ["user-agent", "sockd"]]
    answer = _Status()
    try:
        async with asyncio.timeout(settings.health_s):
            program = await connect()
            try:
                await relay(program, asked, b"", answer, timeout_s=settings.health_s)
            finally:
                program.close()
    except TimeoutError:
        return f"has no whole answer after {settings.health_s:g} s"
    except SockdError as error:
        return f"failed ({error.message})"
    return "" if answer.status in HEALTHY else f"has status {answer.status}"
