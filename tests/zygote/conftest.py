"""A handler server for each test of it, forked for its function or primed as a spare is; code to import from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd_zygote.protocol import PRIMED
from tests.zygote.handler_process import Server


@pytest.fixture(params=["cold", "warm"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(tmp_path, warm=request.param == "warm")
    try:
        if request.param == "warm":
            assert server.receive() == (PRIMED, 0, b"")
        yield server
    finally:
        server.close()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of code, on sys.path; what is imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
