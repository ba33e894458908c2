"""What functions with private networks get from getaddrinfo(3), with glibc's resolver and ours."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sockd.isolation.networks import dns
from tests.daemon.running import RunningDaemon
from tests.support.networks.nameserver import Nameserver
from tests.support.networks.network_lab import PUBLIC, Lab, lab

pytestmark = pytest.mark.root

NAMESERVER = "127.0.0.77"
LOOK_UP = """
import socket
def f(name):
    try:
        return sorted({each[4][0] for each in socket.getaddrinfo(name, 443)})
    except socket.gaierror as error:
        return error.errno
"""


@pytest.fixture(scope="module")
def world(ledger_of_module: None) -> Iterator[Lab]:
    with lab() as world:
        yield world


@pytest.fixture(scope="module")
def nameserver(world: Lab) -> Iterator[Nameserver]:
    many = [f"9.9.{number // 256}.{number % 256}" for number in range(600)]
    with Nameserver(NAMESERVER, {"api.example.com": [PUBLIC], "many.example.com": many}) as nameserver:
        yield nameserver


@pytest.fixture(scope="module")
def config(nameserver: Nameserver) -> str:
    """A cloud's nameserver has a link-local address; the resolver reaches it, although sandboxes are denied its network."""
    return f'[network]\nnameservers = ["{NAMESERVER}"]\nhost_deny = ["{NAMESERVER}/32"]\n'


@pytest.fixture(scope="module")
def function(daemon: RunningDaemon) -> str:
    daemon.deploy("looks-up", LOOK_UP, network="private", egress=["*.example.com:443"], timeout_s=60)
    return "looks-up"


def test_a_temporary_failure_is_one_that_a_function_can_retry(
    daemon: RunningDaemon, nameserver: Nameserver, function: str
) -> None:
    nameserver.failing, nameserver.held = {"fails.example.com"}, {"silent.example.com"}
    assert daemon.call(function, "api.example.com") == [PUBLIC]
    assert daemon.call(function, "fails.example.com") == socket.EAI_AGAIN
    assert daemon.call(function, "silent.example.com") == socket.EAI_AGAIN
    assert daemon.call(function, "unknown.example.com") == socket.EAI_NONAME
    assert daemon.call(function, "api.example.org") == socket.EAI_NONAME


def test_a_name_with_six_hundred_addresses_has_some_for_a_function(daemon: RunningDaemon, function: str) -> None:
    assert len(daemon.call(function, "many.example.com")) == dns.MOST_ADDRESSES
