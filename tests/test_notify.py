"""sd_notify(3): what systemd hears, and that nobody else is needed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sockd.worker.life.notify import READY, STOPPING, notify


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "")
    notify("READY=1")


@pytest.mark.parametrize("abstract", [False, True])
def test_each_state_is_one_datagram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"@sockd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(5)
        notify("READY=1")
        notify("STOPPING=1")
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_a_systemd_that_is_not_there_does_not_stop_the_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY)
    assert "does not answer" in caplog.text


def test_one_that_has_gone_after_the_start_is_no_cause_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(STOPPING)
    assert not caplog.text
