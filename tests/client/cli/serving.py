"""A fake worker with its ports open, and the command line as a process of its own, for the tests of commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from sockd.base.config import Config, HttpConfig
from sockd.http.front import Front
from sockd.http.management.api import LIMITS, Management
from sockd.http.server.listening.sockets import bind_tcp, bind_unix
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.support import sockd_template

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass
class Served:
    """A fake worker with its ports open, in a thread."""

    worker: FakeWorker
    state_dir: Path
    loop: asyncio.AbstractEventLoop

    def environment(self) -> dict[str, str]:
        known = {key: value for key, value in os.environ.items() if not key.startswith("SOCKD_")}
        return {**known, "SOCKD_STATE_DIR": str(self.state_dir), "NO_COLOR": "1"}


@contextmanager
def serving(state_dir: Path) -> Iterator[Served]:
    """While it lasts, a fake worker serves from this directory."""
    (state_dir / "tmp").mkdir()
    started: list[Served] = []
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        worker = FakeWorker()
        front = HttpServer(
            Front(worker, HttpConfig()), [*bind_tcp("127.0.0.1:0"), bind_unix(state_dir / "run.sock", 0o666)]
        )
        app = Management(worker, Config(), state_dir / "tmp").app
        management = HttpServer(app, [bind_unix(state_dir / "sockd.sock")], limits=LIMITS)
        await front.start()
        await management.start()
        worker.url = f"http://127.0.0.1:{front.port}"
        started.append(Served(worker, state_dir, asyncio.get_running_loop()))
        ready.set()
        await stop.wait()
        await front.aclose(0)
        await management.aclose(0)

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(stop.set)
        thread.join(10)


Run = Callable[..., subprocess.CompletedProcess[str]]


def runner(served: Served) -> Run:
    """Runs `sockd` with arguments."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return sockd_template.run(
            [sys.executable, "-m", "sockd", *arguments],
            input=stdin,
            timeout=120,  # the machine may have much else to do, and packing takes a second of it alone
            env={**served.environment(), **environment},
        )

    return run
