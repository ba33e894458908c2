"""A confined process whose daemon is killed while it starts."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest

from sockd.linux.confined import confined_process
from sockd.linux.confined.confined_process import CANNOT_EXEC, ConfinedProcess, Jail, words_of

pytestmark = [pytest.mark.root, pytest.mark.anyio]
FOREVER = "import select; print('up', flush=True); select.select([], [], [])"


@pytest.mark.parametrize(
    ("daemon", "printed", "ended"),
    [(os.getpid(), b"up\n", "killed by signal 9 (killed)"), (1, b"", words_of(CANNOT_EXEC))],
    ids=["its-parent", "another-process"],
)
async def test_a_process_runs_only_while_its_daemon_is_its_parent(
    jail: Jail, monkeypatch: pytest.MonkeyPatch, daemon: int, printed: bytes, ended: str
) -> None:
    """When a daemon is killed before its launcher has asked for the signal of a parent's death (prctl(2)), the kernel gives the
    launcher another parent and sends no signal. The launcher compares its parent with the daemon whose pid it was given."""
    monkeypatch.setattr(confined_process, "os", SimpleNamespace(getpid=lambda: daemon))
    process = await ConfinedProcess.start(
        jail,
        "-c",
        FOREVER,
        uid=70008,
        memory_bytes=64 << 20,
        tmp_bytes=1 << 20,
        pids=4,
        network="none",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.launcher.stdout is not None
        assert await process.launcher.stdout.readline() == printed
        if printed:
            process.launcher.kill()
        assert await process.wait() == ended
    finally:
        await process.close()
