"""The host's table is put back when another program removes it, and nothing passes if that fails."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import subprocess

import pytest

from sockd.isolation.networks import host_rules
from sockd.isolation.networks.host_rules import HostRules
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.uplink import link_of, table_of
from tests.isolation.networks.conftest import WORKER
from tests.isolation.networks.test_networks import connect, endpoint
from tests.support.networks.network_lab import HOST, PORT, Lab, frames_of

pytestmark = [pytest.mark.root, pytest.mark.anyio]

TABLE = table_of(WORKER)
REFUSED = "EHOSTUNREACH"
_SIOCGIFFLAGS, _UP = 0x8913, 1
_SYN = 2


def nft(*words: str) -> str:
    return subprocess.run(["nft", *words], capture_output=True, text=True, check=True).stdout


def rules_of(networks: Networks) -> HostRules:
    assert networks.router is not None
    return networks.router.uplink.rules


async def until_restored(rules: HostRules, times: int) -> None:
    async with asyncio.timeout(10):
        while rules.restored < times:
            await asyncio.sleep(0)


@pytest.mark.parametrize("words", ["flush ruleset", f"delete table ip {TABLE}", f"flush chain ip {TABLE} own"])
async def test_the_rules_are_put_back(words: str, world: Lab, networks: Networks) -> None:
    one = await endpoint(networks, ["0.0.0.0/0"])
    listener = world.listen(world.host, "0.0.0.0", PORT)
    before = nft("list", "table", "ip", TABLE)
    nft(*words.split())
    await until_restored(rules_of(networks), 1)
    assert nft("list", "table", "ip", TABLE) == before
    assert connect(world, one, HOST) == REFUSED
    assert networks.view()["rules_restored"] == 1
    listener.close()
    one.close()


async def test_the_rules_of_others_are_theirs(world: Lab, networks: Networks) -> None:
    (await endpoint(networks, None)).close()
    nft("add", "table", "ip", "other")
    nft("delete", "table", "ip", "other")
    nft("add", "table", "ip", "kept")
    nft("delete", "table", "ip", TABLE)
    await until_restored(rules_of(networks), 1)
    assert "table ip kept" in nft("list", "tables")
    assert rules_of(networks).restored == 1


async def test_nothing_passes_if_they_cannot_be_put_back(
    world: Lab, networks: Networks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (await endpoint(networks, None)).close()
    rules = rules_of(networks)

    def refused(text: str) -> None:
        raise OSError("nft: no")

    monkeypatch.setattr(host_rules, "apply_rules", refused)
    assert is_up(link_of(WORKER))
    nft("delete", "table", "ip", TABLE)
    async with asyncio.timeout(10):
        while is_up(link_of(WORKER)):
            await asyncio.sleep(0)
    assert rules.restored == 0 and "reach nothing from now on" in caplog.text


def is_up(link: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh14x", link.encode(), 0))
    return bool(struct.unpack_from("=16sh", answer)[1] & _UP)


async def test_packets_that_no_rule_allows_are_counted(world: Lab, networks: Networks) -> None:
    one = await endpoint(networks, [])
    before = networks.view()["packets_refused"]
    assert one.namespace is not None
    link = world.capture(one.namespace, "eth0")
    assert connect(world, one, HOST) == REFUSED
    # More than one where the refusal was lost or came while the socket was locked: then the kernel sends the packet again.
    sent = sum(is_opening(frame) for frame in frames_of(link))
    assert sent >= 1 and networks.view()["packets_refused"] == before + sent
    assert networks.view()["packets_limited"] == 0
    one.close()


def is_opening(frame: bytes) -> bool:
    """Whether it is a TCP segment with SYN alone, to the host."""
    header = (frame[14] & 15) * 4
    is_ours = frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP
    return is_ours and frame[30:34] == socket.inet_aton(HOST) and frame[14 + header + 13] == _SYN
