"""Private networks, whole: what a function's rules allow works, everything else is refused at once, and nothing stays."""

from __future__ import annotations

import errno
import socket

import pytest

from sockd.base.config import NetworkConfig
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.network import network_namespaces
from tests.isolation.networks.conftest import WORKER
from tests.support.networks.network_lab import OTHER_PORT, OTHER_PUBLIC, PORT, PRIVATE, PUBLIC, Lab, OwnNamespaces

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def endpoint(networks: Networks, entries: list[str] | None) -> Endpoint:
    """One whose function has these rules."""
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    policy = await networks.policy(networks.parse(entries))
    made = pool.take() or await pool.make()
    made.admit(policy)
    policy.close()
    return made


def connect(world: Lab, one: Endpoint, host: str, port: int = PORT) -> str:
    """What becomes of a connection: ok, or the error's name."""
    assert one.namespace is not None
    with world.tcp(one.namespace) as sock:
        error = sock.connect_ex((host, port))
        return "ok" if error == 0 else errno.errorcode[error]


@pytest.fixture
def internet(world: Lab) -> Lab:
    """An internet that listens everywhere on two ports."""
    for port in (PORT, OTHER_PORT):
        world.listen(world.internet, "0.0.0.0", port)
    return world


async def test_rules_allow_what_they_name(internet: Lab, networks: Networks) -> None:
    one = await endpoint(networks, [f"10.0.0.0/8:{PORT}", f"{PUBLIC}:4000-{OTHER_PORT}/tcp"])
    try:
        assert connect(internet, one, PRIVATE) == "ok"
        assert connect(internet, one, PUBLIC, OTHER_PORT) == "ok"
        assert connect(internet, one, PRIVATE, OTHER_PORT) == "EHOSTUNREACH"
        assert connect(internet, one, OTHER_PUBLIC) == "EHOSTUNREACH"
    finally:
        one.close()


async def test_what_the_worker_denies_is_refused_inside_a_rule_that_contains_it(
    internet: Lab, world: Lab, budget: MemoryBudget
) -> None:
    config = NetworkConfig(denied=(f"{PRIVATE}/32", OTHER_PUBLIC))
    networks = await Networks.open(config, WORKER, budget.reserve_nowait)
    one = await endpoint(networks, ["10.0.0.0/8", "192.168.0.0/16", "internet"])
    try:
        assert connect(internet, one, PUBLIC) == connect(internet, one, "192.168.7.7") == "ok"
        assert connect(internet, one, PRIVATE) == connect(internet, one, OTHER_PUBLIC) == "EHOSTUNREACH"
    finally:
        one.close()
        await networks.aclose()


async def test_no_rules_allow_the_internet(internet: Lab, networks: Networks) -> None:
    one = await endpoint(networks, None)
    try:
        assert connect(internet, one, PUBLIC) == connect(internet, one, OTHER_PUBLIC, OTHER_PORT) == "ok"
        assert connect(internet, one, PRIVATE) == connect(internet, one, "192.168.7.7") == "EHOSTUNREACH"
    finally:
        one.close()


async def test_an_empty_list_allows_nothing(internet: Lab, networks: Networks) -> None:
    one = await endpoint(networks, [])
    try:
        assert connect(internet, one, PUBLIC) == connect(internet, one, PRIVATE) == "EHOSTUNREACH"
    finally:
        one.close()


async def test_an_endpoint_without_rules_reaches_nothing(internet: Lab, networks: Networks) -> None:
    pool = await networks.pool(OwnNamespaces(), has_network=True)
    one = await pool.make()
    try:
        assert connect(internet, one, PUBLIC) == "EHOSTUNREACH"
    finally:
        one.close()


async def test_ipv6_is_unreachable_at_once(internet: Lab, networks: Networks) -> None:
    one = await endpoint(networks, None)
    try:
        assert one.namespace is not None
        with network_namespaces.entered(one.namespace), socket.socket(socket.AF_INET6) as sock:
            assert sock.connect_ex(("2001:4860:4860::8888", 443)) == errno.ENETUNREACH
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
            with listener:
                assert sock.connect_ex(listener.getsockname()) == 0
    finally:
        one.close()
