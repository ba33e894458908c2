"""What walled Zygotes and their sandboxes may reach: no network but those that were made for them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import SandboxFailed
from sockd.isolation.farm.control import close_all
from sockd.isolation.farm.namespace_maker import NamespaceMaker
from tests.isolation.sandbox.zygotes import HANDLER, pid_of
from tests.support.harness import Harness, namespaces_of, status_of

pytestmark = pytest.mark.root

NETWORK_CAPABILITIES = 1 << 12 | 1 << 13
"""CAP_NET_ADMIN and CAP_NET_RAW."""

NOSY = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def errno_of(call):
    ctypes.set_errno(0)
    try:
        return ctypes.get_errno() if call() == -1 else 0
    except OSError as error:
        return error.errno

def connect(address):
    with socket.socket() as sock:
        return sock.connect_ex(address)

def look(port):
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        return {
            "net": os.readlink("/proc/self/ns/net"),
            "links": [name for _, name in socket.if_nameindex()],
            "loopback": connect(("127.0.0.1", port)),
            "own": errno_of(lambda: libc.setns(own, 0x40000000)),
            "user": errno_of(lambda: libc.setns(own, 0x10000000)),
            "new": errno_of(lambda: libc.unshare(0x40000000)),
            "clone": errno_of(lambda: libc.syscall(56, 0x50000011, 0, 0, 0, 0)),
            "raw": errno_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
            "packet": errno_of(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()),
        }
    finally:
        os.close(own)
"""


def test_a_package_of_a_walled_zygote_reaches_nothing(harness: Harness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        harness.add_package("p", {"nosy.py": NOSY, "looks.py": f"import nosy\nseen = nosy.look({port})\n"})
        zygote = harness.spawn(harness.walled, modules=["looks"])
        source = f"import looks, nosy\ndef handler(event): return [looks.seen, nosy.look({port})]\n"
        running = harness.start(source, zygote=zygote, network="none", paths=["/packages/p"])
        imported, ours = running.answer()
    assert imported["links"] == ours["links"] == ["lo"]
    assert imported["loopback"] == ours["loopback"] != 0
    assert (imported["own"], ours["own"]) == (0, 1), "a walled Zygote may enter networks of its own, a sandbox none"
    for refused in ("user", "new", "clone"):
        assert imported[refused] == ours[refused] == 1, refused
    assert imported["raw"] != 0 and imported["packet"] != 0 and ours["raw"] != 0 and ours["packet"] != 0
    links = [os.readlink(each) for each in Path(f"/proc/{running.pid}/fd").iterdir()]
    held = [each for each in links if "/libffi.so" not in each]  # libffi 3.8 keeps its own file open for ctypes
    assert len(held) == 4 and not [each for each in held if each.startswith("net:")]
    host = os.readlink("/proc/self/ns/net")
    assert len({host, imported["net"], ours["net"]}) == 3


def test_neither_it_nor_its_sandbox_has_a_capability_over_networks_or_the_host(harness: Harness) -> None:
    harness.add_package("p", {"some_package.py": "x = 1\n"})
    zygote = harness.spawn(harness.walled, modules=["some_package"])
    running = harness.start(HANDLER, zygote=zygote, network="none")
    running.answer()
    for each in (harness.walled, zygote):
        status = status_of(pid_of(each))
        for kind in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
            assert int(status[kind], 16) & NETWORK_CAPABILITIES == 0, (kind, status[kind])
        assert namespaces_of(pid_of(each))["user"] != namespaces_of("self")["user"]
    assert {int(value, 16) for key, value in status_of(running.pid).items() if key.startswith("Cap")} == {0}


def test_each_sandbox_has_a_network_of_its_own_that_ends_with_it(harness: Harness) -> None:
    one, other = (harness.start(HANDLER, network="none", spare=spare) for spare in (False, True))
    assert one.answer(1) == 1 and other.answer(2) == 2
    networks = {namespaces_of(each.pid)["net"] for each in (one, other)}
    assert len(networks) == 2 and namespaces_of(pid_of(harness.walled))["net"] not in networks
    assert networks <= open_networks()
    for each in (one, other):
        each.destroy()
    harness.run(harness._settled())
    assert not networks & open_networks(), "the daemon has closed its descriptors"


def test_a_zygote_serves_no_function_with_another_network(harness: Harness) -> None:
    for zygote, network in ((harness.root, "none"), (harness.walled, "host"), (harness.walled, "private")):
        with pytest.raises(SandboxFailed, match=re.escape(f'network = "{network}"')):
            harness.start(HANDLER, zygote=zygote, network=network)


def test_a_zygote_is_back_in_its_own_network_after_each_fork(harness: Harness) -> None:
    home = namespaces_of(pid_of(harness.walled))["net"]
    for number in range(3):
        assert harness.answer(HANDLER, number, network="none") == number
        assert namespaces_of(pid_of(harness.walled))["net"] == home


def test_the_maker_gives_namespaces_to_a_zygote_and_is_restarted_when_it_ends(harness: Harness) -> None:
    maker = NamespaceMaker()
    try:
        for _ in range(2):
            made = harness.run(maker.make(harness.walled.pidfd, 3))
            try:
                assert len({os.stat(each).st_ino for each in made}) == 3
                assert {user_namespace_of(each) for each in made} == {namespaces_of(pid_of(harness.walled))["user"]}
            finally:
                close_all(made)
            process: Any = maker._process
            process.kill()
            harness.run(process.wait())
            wire: Any = maker._wire
            while not wire.closed:
                harness.run(asyncio.sleep(0))
    finally:
        harness.run(maker.aclose())


def user_namespace_of(namespace: int) -> str:
    """The user namespace that owns one (ioctl_nsfs(2): NS_GET_USERNS)."""
    owner = fcntl.ioctl(namespace, 0xB701)
    try:
        return os.readlink(f"/proc/self/fd/{owner}")
    finally:
        os.close(owner)


def open_networks() -> set[str]:
    """Network namespaces that this process has descriptors of."""
    targets = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.add(os.readlink(entry))
        except FileNotFoundError:
            continue
    return {each for each in targets if each.startswith("net:")}
