"""A confined process whose daemon is killed while it starts."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from sockd.linux.confined import confined_process
from sockd.linux.confined.confined_process import CANNOT_EXEC, ConfinedProcess, Jail, words_of

pytestmark = [pytest.mark.root, pytest.mark.anyio]
FOREVER = "import select; select.select([], [], [])"


@pytest.mark.parametrize(
    ("parent", "said"), [(os.getpid, "killed by signal 9 (killed)"), (lambda: 1, words_of(CANNOT_EXEC))]
)
async def test_a_launcher_whose_daemon_has_ended_ends(
    jail: Jail, monkeypatch: pytest.MonkeyPatch, parent: object, said: str
) -> None:
    """The kernel's signal of a parent's death comes only to who asked for it before. Here another process than the daemon is
    the parent, as after its death."""
    monkeypatch.setattr(confined_process, "os", SimpleNamespace(getpid=parent))
    process = await ConfinedProcess.start(
        jail, "-c", FOREVER, uid=70008, memory_bytes=64 << 20, tmp_bytes=1 << 20, pids=4, network="none"
    )
    try:
        if parent is os.getpid:
            process.launcher.kill()
        assert await process.wait() == said
    finally:
        await process.close()
