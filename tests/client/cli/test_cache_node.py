"""`sockd cache-node`: it serves, and refuses what it cannot use."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def begin(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sockd", "cache-node", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_node_serves_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    options = ("--dir", str(tmp_path / "node"), "--disk-mb", "10", "--token-file", str(tmp_path / "token"))
    with begin("--listen", "127.0.0.1:0", *options) as node:
        assert node.stdout is not None
        address = node.stdout.readline().split()[-1]
        connection = http.client.HTTPConnection(address)
        statuses = []
        for headers in ({}, {"Authorization": "Bearer secret"}):
            connection.request("GET", "/status", headers=headers)
            statuses.append(connection.getresponse().status)
            connection.close()
        assert statuses == [401, 200]
        node.send_signal(signal.SIGTERM)
        assert node.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "nowhere"), "not HOST:PORT"),
        (("--listen", "192.0.2.1:7100"), "the node cannot start"),
        (("--listen", "127.0.0.1:0", "--token-file", "/dev/null"), "has no token"),
        (("--listen", "127.0.0.1:0", "--dir", "/proc/nowhere"), "the node cannot start"),
    ],
)
def test_what_a_node_cannot_use_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    with begin(*arguments) as node:
        _, errors = node.communicate()
    assert node.returncode != 0 and words in errors and "Traceback" not in errors
