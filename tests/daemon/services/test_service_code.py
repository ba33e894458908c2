"""The code of a service while a program of an older deploy still runs on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.services.test_service_websockets import SERVER, files, opened
from tests.daemon.services.test_services import row

pytestmark = [pytest.mark.root, pytest.mark.anyio]

READS = SERVER.replace("connection.send(message)", 'connection.send(open("own.txt").read())')


async def test_code_stays_until_the_last_program_of_it_has_ended(tmp_path: Path) -> None:
    """Though one deploy is remembered and no more, and the old program has but a connection."""
    daemon = RunningDaemon.start(tmp_path / "state", "[code]\nkeep_versions = 1\n")
    code = tmp_path / "state" / "code"

    def deploy(number: int) -> None:
        daemon.deploy("long", {**files("drain_s = 600\n", READS), "own.txt": str(number)})

    def has_started(times: int) -> bool:
        return bool(row(daemon, "long")["starts"] == times)

    async def read(number: int) -> None:
        async with opened(daemon, "long") as client:
            await client.send("read")
            assert await client.recv() == str(number)

    try:
        deploy(1)
        (first,) = code.iterdir()
        async with opened(daemon, "long") as old:
            for number in (2, 3, 4):
                deploy(number)
                daemon.when(partial(has_started, number))
                await read(number)
            await old.send("read")
            assert await old.recv() == "1"
            daemon.when(lambda: row(daemon, "long")["draining"] == 1)  # the third has ended, too
        daemon.when(lambda: not row(daemon, "long")["draining"])
        deploy(5)
        daemon.when(lambda: not first.exists())
    finally:
        daemon.close()
