"""The host's addresses are refused by the router itself, those that come later included, and are allowed again when they go."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.ruleset import HOST as SET
from sockd.isolation.networks.ruleset import TABLE
from sockd.linux.network import rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket
from tests.isolation.networks.test_networks import connect, endpoint
from tests.support.networks.network_lab import HOST, PORT, PUBLIC, Lab

pytestmark = [pytest.mark.root, pytest.mark.anyio]
LATER = "5.5.5.88"


def in_the_set(networks: Networks) -> str:
    assert networks.router is not None
    command = ["nsenter", f"--net=/proc/self/fd/{networks.router.namespace}", "nft", "list", "set", "inet", TABLE, SET]
    done = subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=[networks.router.namespace])
    return done.stdout


async def test_the_set_follows_the_hosts_addresses(world: Lab, networks: Networks) -> None:
    one = await endpoint(networks, None)
    with contextlib.closing(one), contextlib.closing(NetlinkSocket.open(ROUTE)) as host:
        assert HOST in in_the_set(networks) and LATER not in in_the_set(networks)
        host.exchange([rtnetlink.address(rtnetlink.LOOPBACK, LATER, 32)])
        async with asyncio.timeout(10):
            while LATER not in in_the_set(networks):
                await asyncio.sleep(0)
        subprocess.run(["ip", "address", "delete", f"{LATER}/32", "dev", "lo"], check=True)
        async with asyncio.timeout(10):
            while LATER in in_the_set(networks):
                await asyncio.sleep(0)


@pytest.mark.parametrize("rule", [HOST, f"{HOST}:{PORT}", f"{HOST}/32:{PORT}/tcp"])
async def test_a_rule_for_an_address_of_the_host_is_refused(world: Lab, networks: Networks, rule: str) -> None:
    with pytest.raises(BadFunctionConfig, match=r"entry 2, .* is never reached .*it is an address of the host"):
        networks.parse(["internet", rule])
    assert networks.parse(["5.5.5.0/24"]).rules and networks.recorded([rule])[1] == []


async def test_a_flush_of_the_hosts_rules_opens_nothing_of_the_host_for_a_moment(
    world: Lab, networks: Networks
) -> None:
    world.listen(world.internet, PUBLIC, PORT)
    listener = world.listen(world.host, "0.0.0.0", PORT)
    one = await endpoint(networks, None)
    with contextlib.closing(one), contextlib.closing(listener):
        assert connect(world, one, PUBLIC) == "ok"
        subprocess.run(["nft", "flush", "ruleset"], check=True)  # nothing is put back before this task waits
        assert connect(world, one, HOST) == "EHOSTUNREACH"
