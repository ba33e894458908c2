"""Which templates an earlier daemon has used, and for which of them a start waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sockd.base.config import ZygoteConfig
from sockd.starts.templates import used_templates
from sockd.starts.templates.templates import Templates
from sockd.starts.templates.used_templates import Used, UsedTemplates

pytestmark = pytest.mark.anyio


def test_use_is_saved_at_once_and_then_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "templates.json"
    template: Any = SimpleNamespace(of=SimpleNamespace(name="f", number="3"), starts=1, used_s=time.time())
    template.report = SimpleNamespace(seconds=2.5)
    used = UsedTemplates(path)
    used.adjust([])
    assert not path.exists()
    used.adjust([template])
    assert UsedTemplates(path).of("f", "3") == Used("f", "3", 1, template.used_s, 2.5)
    template.starts = 2
    used.adjust([template])
    assert UsedTemplates(path).of("f", "3") == Used("f", "3", 1, template.used_s, 2.5)
    monkeypatch.setattr(used_templates, "SAVED_EVERY_S", 0.0)
    used.adjust([template])
    assert UsedTemplates(path).of("f", "3") == Used("f", "3", 2, template.used_s, 2.5)


def templates_after(path: Path, *inits: tuple[str, float]) -> Templates:
    """Templates that an earlier daemon has used, the first the most; none is made, as nothing says that it may begin."""
    used = [Used(name, "$LATEST", 100 - number, time.time(), init_s) for number, (name, init_s) in enumerate(inits)]
    path.write_bytes(msgspec.json.encode(used))
    tree: Any = SimpleNamespace(children=None)
    budget: Any = None
    templates = Templates(ZygoteConfig(), tree, budget, UsedTemplates(path))
    for name, _ in inits:
        wanted: Any = SimpleNamespace(name=name, number="$LATEST", program=name)
        templates.expect(wanted)
    return templates


async def test_a_start_waits_for_the_templates_whose_inits_fit(tmp_path: Path) -> None:
    templates = templates_after(
        tmp_path / "templates.json", ("short", 1.0), ("other", 2.0), ("long", 100.0), ("late", 1.0)
    )
    waiting = asyncio.create_task(templates.rebuilt(deadline_s=50))
    entries = {entry.of.name: entry for entry in templates.entries()}
    entries["short"].settled.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    entries["other"].settled.set()
    await asyncio.wait_for(waiting, 10)
    await templates.aclose()


@pytest.mark.parametrize("init_s", [0.0, 60.0])
async def test_a_start_waits_for_no_init_that_is_unknown_or_too_long(tmp_path: Path, init_s: float) -> None:
    templates = templates_after(tmp_path / "templates.json", ("first", init_s), ("second", 1.0))
    await asyncio.wait_for(templates.rebuilt(deadline_s=50), 10)
    await templates.aclose()
