"""A port's listener is found where a request to it is sure to arrive, and only if it is our own uid's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd_zygote.handlers.programs.own_listener import OwnListener

OTHERS = """
import os, socket, sys
os.setuid(65534)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody listens on: it is bound here, so that nobody else gets it by chance."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@pytest.mark.parametrize(
    ("at", "reached"),
    [
        *(("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::ffff:127.0.0.1", "127.0.0.1"), ("::", "::1")),
        *(("127.0.0.2", ""), ("::1", "")),
    ],
)
def test_a_listener_is_found_at_the_addresses_that_loopback_leads_to(port: int, at: str, reached: str) -> None:
    own = OwnListener(port)
    assert own.find() is None
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    dual = family == socket.AF_INET6
    with socket.create_server((at, port), family=family, dualstack_ipv6=dual) as listener:
        found = own.find()
        if not reached:
            assert found is None
        else:
            assert found == (str(os.fstat(listener.fileno()).st_ino), reached)
    assert own.find() is None


def test_a_listener_that_was_opened_anew_is_another_one(port: int) -> None:
    own = OwnListener(port)
    with socket.create_server(("127.0.0.1", port)):
        first = own.find()
    with socket.create_server(("127.0.0.1", port)):
        assert own.find() not in (None, first)


def test_it_is_found_behind_many_other_listeners(port: int) -> None:
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    try:
        with socket.create_server(("0.0.0.0", port)):
            assert OwnListener(port).find() is not None
    finally:
        for each in others:
            each.close()


@pytest.mark.root
def test_a_listener_of_another_uid_is_none_of_ours(port: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHERS, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "listening\n"
        assert OwnListener(port).find() is None
        other.communicate("")
