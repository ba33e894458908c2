"""Netlink: messages as bytes, batches, what the kernel refuses, and links, routes and set elements on this kernel."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import pytest
from pyroute2 import IPRoute

from sockd.linux.network import network_namespaces, nfnetlink, rtnetlink
from sockd.linux.network.netlink import (
    ACK,
    NETFILTER,
    REQUEST,
    ROUTE,
    Message,
    NetlinkSocket,
    attribute,
    attributes,
    encode,
    split,
)
from sockd.linux.network.netlink import nested as nest

MACS = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def test_messages_count_up_and_are_padded() -> None:
    data = encode([Message(16, REQUEST, b"abc", "one"), Message(17, ACK, b"", "two")], 7)
    assert len(data) == 20 + 16
    assert list(split(data)) == [(16, 7, b"abc"), (17, 8, b"")]


def test_what_is_cut_short_is_refused() -> None:
    data = encode([Message(16, REQUEST, bytes(8), "one")], 1)
    with pytest.raises(ValueError):
        list(split(data[:-4]))
    with pytest.raises(ValueError):
        attributes(struct.pack("=HH", 12, 1) + b"1234")


def test_attributes_are_read_back() -> None:
    assert attributes(attribute(1, b"a") + nest(2, attribute(3, b"bc"))) == {1: b"a", 2: attribute(3, b"bc")}


@pytest.fixture
def namespaces() -> Iterator[tuple[int, int]]:
    """Two; the test's thread is in the first."""
    with contextlib.ExitStack() as stack:
        here, there = network_namespaces.new(), network_namespaces.new()
        stack.callback(os.close, here)
        stack.callback(os.close, there)
        stack.enter_context(network_namespaces.entered(here))
        yield here, there


def pair(there: int) -> Message:
    return rtnetlink.veth(
        *("left", "right"),
        index=30,
        peer_index=40,
        mac=MACS[0],
        peer_mac=MACS[1],
        mtu=1400,
        namespace=there,
        up=True,
    )


@pytest.mark.root
def test_a_pair_is_born_in_two_namespaces_and_another_reader_sees_it(namespaces: tuple[int, int]) -> None:
    _, there = namespaces
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as sock:
        sock.exchange([pair(there), rtnetlink.address(30, "10.9.9.1", 32), rtnetlink.link_route(30, "10.9.9.2")])
        sock.exchange([rtnetlink.neighbour(30, "10.9.9.2", MACS[1]), rtnetlink.default_route(30, "10.9.9.2")])
    with IPRoute() as reader:
        (left,) = reader.get_links(ifname="left")
        assert (left["index"], left.get("mtu"), left.get("address")) == (30, 1400, "02:00:00:00:00:01")
        assert [each.get("local") for each in reader.get_addr(index=30, family=2)] == ["10.9.9.1"]
        routes = {
            (each.get("dst") or "default", each.get("gateway")) for each in reader.get_routes(family=2, table=254)
        }
        assert routes == {("10.9.9.2", None), ("default", "10.9.9.2")}
        (neighbour,) = reader.get_neighbours(ifindex=30, family=2)
        assert (neighbour.get("lladdr"), neighbour["state"]) == ("02:00:00:00:00:02", 0x80)
    with network_namespaces.entered(there), IPRoute() as reader:
        assert [each["index"] for each in reader.get_links(ifname="right")] == [40]


@pytest.mark.root
def test_a_refusal_names_the_message(namespaces: tuple[int, int]) -> None:
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as sock:
        with pytest.raises(OSError, match="link 77 up"):
            sock.exchange([rtnetlink.link_up(rtnetlink.LOOPBACK), rtnetlink.link_up(77), rtnetlink.link_up(1)])
        sock.exchange([rtnetlink.link_up(rtnetlink.LOOPBACK)])
        with pytest.raises(OSError, match="delete nothing"):
            sock.exchange([rtnetlink.delete_link("nothing")])


@pytest.mark.root
def test_a_batch_for_a_table_that_is_not_there_is_refused(namespaces: tuple[int, int]) -> None:
    with contextlib.closing(NetlinkSocket.open(NETFILTER)) as sock:
        elements = [nfnetlink.Element("10.0.0.1", "somewhere")]
        with pytest.raises(FileNotFoundError, match="add to map"):
            sock.exchange(nfnetlink.batch(nfnetlink.add("none", "map", elements)))
        with pytest.raises(FileNotFoundError, match="delete table none"):
            sock.exchange(nfnetlink.batch(nfnetlink.delete_table("none")))
