"""A handler server for each test of it, forked for its function or primed as a spare is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.zygote.handler_process import Server
from zygote.protocol import PRIMED


@pytest.fixture(params=["cold", "warm"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path, warm=request.param == "warm")
    try:
        if request.param == "warm":
            assert server.receive() == (PRIMED, 0, b"")
        yield server
    finally:
        server.close()
