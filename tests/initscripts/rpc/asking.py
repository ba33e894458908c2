"""How tests call and look at what came back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import Connection, Reply, RpcFailed, RpcTiming


async def ask(
    connection: Connection,
    region: Region,
    method: str,
    body: bytes | dict[str, str] = b"",
    timing: RpcTiming | None = None,
) -> Reply:
    """One call; parameters may be given as a dict."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await connection.call(method, payload, region, timing or RpcTiming())


def content(reply: Reply) -> bytes:
    """A reply's bytes, copied out of the region."""
    return bytes(reply.buffer.view) if reply.buffer else b""


@asynccontextmanager
async def failing(reason: str, number: int) -> AsyncIterator[None]:
    """The block fails with that reason and errno."""
    with pytest.raises(RpcFailed) as failure:
        yield
    assert (failure.value.reason, failure.value.errno) == (reason, number), str(failure.value)
