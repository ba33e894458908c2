"""Networks that a cgroup may not send to: on this kernel, by a process that is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from sockd.kernel.cgroups.tree import CgroupTree, Hierarchies
from sockd.kernel.network.resolv_conf import nameservers

DENIED = [ip_network(each) for each in ("127.9.0.0/16", "127.8.0.1/32", "::1/128")]
INSIDE = """
import errno, json, socket, sys
def ask(what):
    sock = socket.socket(getattr(socket, what["family"]), getattr(socket, what["kind"]), what.get("protocol", 0))
    address = (what["host"], what["port"])
    try:
        if what["call"] == "connect":
            sock.connect(address)
        elif what["call"] == "sendto":
            sock.sendto(b"x", address)
        else:
            sock.sendto(b"x", socket.MSG_FASTOPEN, address)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
for line in sys.stdin:
    print(json.dumps(ask(json.loads(line))), flush=True)
"""

pytestmark = pytest.mark.root
Ask = Callable[..., Any]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """What a process in a guarded cgroup hears of the kernel."""
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        if tree.hierarchies.unified is None:
            pytest.skip("there is no v2 hierarchy")
        tree.deny_networks(DENIED, [("127.8.0.1", 53), ("127.8.0.1", 3141), ("9.9.9.9", 53), ("::1", 53)])
        cgroup = tree.cgroup("one")
        with subprocess.Popen([sys.executable, "-c", INSIDE], stdin=-1, stdout=-1, text=True) as process:
            assert process.stdin and process.stdout
            for fd in cgroup.procs_fds:
                os.write(fd, str(process.pid).encode())

            def say(host: str, port: int = 9, **more: object) -> Any:
                assert process.stdin and process.stdout
                what = {
                    "family": "AF_INET",
                    "kind": "SOCK_STREAM",
                    "call": "connect",
                    "host": host,
                    "port": port,
                    **more,
                }
                process.stdin.write(json.dumps(what) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())

            yield say
            process.stdin.close()
        cgroup.close()
    finally:
        tree.close()
        tree.destroy_all(5)


WAYS: list[dict[str, Any]] = [
    {"kind": "SOCK_STREAM", "call": "connect"},
    {"kind": "SOCK_STREAM", "call": "connect", "protocol": 262},  # IPPROTO_MPTCP
    {"kind": "SOCK_STREAM", "call": "fast open"},
    {"kind": "SOCK_DGRAM", "call": "connect"},
    {"kind": "SOCK_DGRAM", "call": "sendto"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['kind']} {way['call']} {way.get('protocol', '')}")
@pytest.mark.parametrize("form", ["", "::ffff:"])
def test_denied_networks_are_not_sent_to(ask: Ask, way: dict[str, Any], form: str) -> None:
    family = {"family": "AF_INET6" if form else "AF_INET"}
    for host in ("127.9.0.1", "127.9.255.254", "127.8.0.1"):
        assert ask(form + host, **way, **family) == "EPERM"
    assert ask(form + "127.0.0.1", **way, **family) in ("ok", "ECONNREFUSED")
    assert ask(form + "127.8.0.2", **way, **family) in ("ok", "ECONNREFUSED")


def test_denied_networks_of_ipv6_are_not_sent_to(ask: Ask) -> None:
    assert ask("::1", family="AF_INET6") == "EPERM"
    assert ask("::1", family="AF_INET6", kind="SOCK_DGRAM", call="sendto") == "EPERM"


@pytest.mark.parametrize("form", ["", "::ffff:"])
def test_an_excepted_port_of_a_denied_network_is_sent_to(ask: Ask, form: str) -> None:
    family = {"family": "AF_INET6" if form else "AF_INET"}
    for way in WAYS:
        for port in (53, 3141):
            assert ask(form + "127.8.0.1", port, **way, **family) in ("ok", "ECONNREFUSED")
        assert ask(form + "127.8.0.1", 54, **way, **family) == "EPERM"
        assert ask(form + "127.9.0.1", 53, **way, **family) == "EPERM"
    assert ask("::1", 53, family="AF_INET6") in ("ok", "ECONNREFUSED", "EADDRNOTAVAIL")


def test_nameservers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# nameserver 1.1.1.1\nnameserver 10.0.0.2\nnameserver\nsearch a\nnameserver fe80::1%eth0\nnameserver ::1\n"
    )
    assert nameservers(file) == ["10.0.0.2", "::1"]
    assert nameservers(tmp_path / "none") == []
