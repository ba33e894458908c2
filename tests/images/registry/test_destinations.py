"""Which addresses a registry may have an import connect to: judged after the name was resolved, once."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sockd.base.errors import BadImage
from sockd.images.registry import destinations
from sockd.images.registry.destinations import Destinations
from sockd.images.registry.origin import Origin
from sockd.linux.network import own_addresses
from tests.support.cases import case

REGISTRY = Origin("https", "registry.example", 443)
STORAGE = Origin("https", "storage.example", 443)
LOOPBACK = Origin("http", "localhost", 5000)


def refusal(address: str, origin: Origin = STORAGE, registry: Origin = REGISTRY, **hosts: tuple[str, ...]) -> str:
    return Destinations(**hosts).refusal(origin, registry, ipaddress.ip_address(address))


@case(
    "K27",
    "a registry's realm or redirect names addresses of the host, of its networks and of metadata services, embedded ones too",
    expect="the import connects to none of them",
)
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.100.100.200", "169.254.169.254"),
        *("168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("fe80::1", "fd00:ec2::254", "fc00::1", "ff02::1", "2001:db8::1", "2002:7f00:1::1", "2001:0:1::1"),
        *("2a00::5efe:7f00:1", "2a00::200:5efe:a00:1"),
    ],
)
def test_no_address_is_connected_to_for_a_registry_that_is_not_public(address: str) -> None:
    assert "not a public address; images.redirect_hosts names hosts" in refusal(address)
    assert not refusal(address, redirect_hosts=("storage.example",))
    assert not refusal(address, redirect_hosts=("storage.example:443",))
    assert refusal(address, redirect_hosts=("storage.example:444", "example"))


@pytest.mark.parametrize("address", ["8.8.8.8", "52.216.1.1", "2606:4700::1", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_public_addresses_are_connected_to(address: str) -> None:
    assert not refusal(address)


def test_an_address_of_this_host_is_none_of_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [*own_addresses.LOOPBACK, ipaddress.IPv4Network("8.8.4.4")]
    monkeypatch.setattr(destinations, "own_addresses", lambda: own)
    assert "8.8.4.4, an address of this host" in refusal("8.8.4.4") and not refusal("8.8.8.8")


@pytest.mark.parametrize("address", ["10.0.0.5", "127.0.0.1", "8.8.8.8", "fd00::5"])
def test_the_registry_that_was_named_may_be_anywhere(address: str) -> None:
    assert not refusal(address, REGISTRY)
    assert not refusal(address, Origin("https", REGISTRY.host, 443), Origin("https", REGISTRY.host, 5000))
    assert bool(refusal(address, Origin("https", REGISTRY.host, 8443))) == (address != "8.8.8.8")


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "168.63.129.16", "::ffff:169.254.169.254"])
def test_the_registry_that_was_named_is_no_metadata_service(address: str) -> None:
    assert "a link-local or metadata address" in refusal(address, REGISTRY)
    assert not refusal(address, REGISTRY, redirect_hosts=("registry.example",))


def test_a_local_name_that_leads_to_another_machine_gets_no_plain_http() -> None:
    assert not refusal("127.0.0.1", LOOPBACK, LOOPBACK) and not refusal("::1", LOOPBACK, LOOPBACK)
    assert "not on loopback" in refusal("10.0.0.1", LOOPBACK, LOOPBACK)
    assert not refusal("10.0.0.1", LOOPBACK, LOOPBACK, insecure_hosts=("localhost:5000",))


def test_plain_http_is_for_the_named_registry_on_loopback_and_for_configured_hosts() -> None:
    some = Destinations(insecure_hosts=("plain.example", "[::1]:5000"))
    for origin in (LOOPBACK, Origin("http", "plain.example", 80), Origin("http", "::1", 5000)):
        some.check_scheme(origin, LOOPBACK)
    for origin in (Origin("http", "localhost", 5001), Origin("http", "127.0.0.1", 5000), Origin("http", "::1", 5001)):
        with pytest.raises(BadImage, match="only spoken with over HTTPS"):
            some.check_scheme(origin, LOOPBACK)


class Answers:
    """Answers of DNS for one name, one after the other: each is the addresses, all with one port."""

    def __init__(self, *answers: list[str], port: int) -> None:
        self.answers = list(answers)
        self._port = port

    def getaddrinfo(self, host: str, port: int, **options: Any) -> Iterator[Any]:
        for address in self.answers.pop(0):
            yield socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, self._port)


@case("K27", "the name is public when it is judged, and the loopback afterwards", expect="it is resolved once")
def test_the_address_that_is_judged_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is judged and the loopback when it is connected to, as DNS rebinding has it."""
    public = ipaddress.ip_address("127.0.0.2")
    monkeypatch.setattr(destinations, "_kind", lambda address: "" if address == public else "not a public address")
    with socket.create_server(("127.0.0.2", 0)) as listener:
        dns = Answers(["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.1"], port=listener.getsockname()[1])
        monkeypatch.setattr(socket, "getaddrinfo", dns.getaddrinfo)
        with pytest.raises(BadImage, match=r"storage.example, which is 127\.0\.0\.1, not a public address"):
            Destinations().connect(STORAGE, REGISTRY, 5.0)
        with closing(Destinations().connect(STORAGE, REGISTRY, 5.0)) as sock:
            assert sock.getpeername()[0] == "127.0.0.2" and dns.answers == [["127.0.0.1"]]


def test_the_next_address_is_tried_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        dns = Answers(["127.0.0.1", "127.0.0.2"], ["127.0.0.1"], [], port=listener.getsockname()[1])
        monkeypatch.setattr(socket, "getaddrinfo", dns.getaddrinfo)
        with closing(Destinations().connect(REGISTRY, REGISTRY, 5.0)) as sock:
            assert sock.getpeername()[0] == "127.0.0.2"
        with pytest.raises(ConnectionRefusedError):
            Destinations().connect(REGISTRY, REGISTRY, 5.0)
