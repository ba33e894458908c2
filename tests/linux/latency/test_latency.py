"""All parts behind one interface: each can be switched off, and a notice to one reaches no other."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.base.config import Config, LatencyConfig
from sockd.linux.cgroups.hierarchies import Hierarchies
from sockd.linux.latency import favordynmods
from sockd.linux.latency.latency import FAVORDYNMODS_IS_ON, Latency
from tests.support.kernel_threads import threads_of

pytestmark = pytest.mark.anyio
OFF = LatencyConfig(favordynmods="off", hrtick="off", garbage="off")


@pytest.fixture
def pythons_rule() -> Iterator[None]:
    """Give back what a collector changes."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("pythons_rule")
async def test_switched_off_every_part_leaves_everything_as_it_is() -> None:
    thresholds = gc.get_threshold()
    latency = Latency.open(OFF, Hierarchies.detect())
    latency.serving_begun()
    latency.running += 1
    assert latency.request_begun is None
    latency.start_begun()
    assert (latency.notice, latency.running) == ("", 1)
    assert threads_of(os.getpid(), "hrtick/") == []
    assert gc.get_threshold() == thresholds
    latency.running -= 1
    latency.close()
    latency.close()
    assert latency.running == 0


@pytest.mark.usefixtures("pythons_rule")
async def test_switched_on_there_is_a_tick_and_a_collector_until_it_is_closed() -> None:
    thresholds = gc.get_threshold()
    latency = Latency.open(LatencyConfig(favordynmods="off", hrtick="on"), Hierarchies.detect())
    assert len(threads_of(os.getpid(), "hrtick/")) == len(os.sched_getaffinity(0))
    latency.serving_begun()
    assert gc.get_threshold() != thresholds
    latency.close()
    assert threads_of(os.getpid(), "hrtick/") == []


async def test_what_changes_the_host_is_reported_once_it_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [True, False]
    monkeypatch.setattr(favordynmods, "enabled_needed", lambda hierarchies: needed.pop(0))
    monkeypatch.setattr(favordynmods, "enable", lambda: None)
    config = LatencyConfig(hrtick="off", garbage="off")
    reported = [Latency.open(config, Hierarchies.detect()).notice for _ in range(2)]
    assert reported == [FAVORDYNMODS_IS_ON, ""]
    assert 'latency.favordynmods = "off"' in FAVORDYNMODS_IS_ON and "\n" not in FAVORDYNMODS_IS_ON


def test_settings_of_before_are_taken_for_what_they_are_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "sockd.toml"
    file.write_text('[sandbox]\nfavordynmods = "off"\nhrtick = "on"\nidle_poll = "on"\n[latency]\nhrtick = "off"\n')
    config = Config.load(file)
    assert (config.latency.favordynmods, config.latency.hrtick) == ("off", "off")
    assert [record.getMessage() for record in caplog.records] == [
        "sandbox.favordynmods is latency.favordynmods now",
        "sandbox.hrtick is latency.hrtick now",
        "sandbox.idle_poll does nothing any more; take it out of the configuration",
    ]
