"""rtnetlink(7): links, addresses, routes and neighbours as messages for `netlink`.

Pure. Only what a routed veth pair needs: IPv4, permanent neighbours (no ARP), a peer that is born in its namespace, so that
nothing is moved between namespaces afterwards.
"""

from __future__ import annotations

import socket
import struct

from sockd.linux.network.netlink import ACK, CREATE, EXCL, REQUEST, Message, attribute, nested, number, text

IPV4_ADDRESS_EVENTS = 1 << 4
"""The multicast group that announces addresses of links, as bind(2) takes it (RTMGRP_IPV4_IFADDR)."""
LOOPBACK = 1
"""The index of `lo`, in every network namespace."""
_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE, _NEWNEIGH = 16, 17, 20, 24, 28
_NEW = REQUEST | ACK | CREATE | EXCL
_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 4, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_MAIN_TABLE, _STATIC, _UNICAST, _UNREACHABLE = 254, 4, 1, 7
_GLOBAL, _LINK = 0, 253
_ONLINK = 4
_NDA_DST, _NDA_LLADDR, _PERMANENT = 1, 2, 0x80
_link = struct.Struct("=BxHiII")
_address = struct.Struct("=BBBBI")
_route = struct.Struct("=BBBBBBBBI")
_neighbour = struct.Struct("=BxxxiHBB")


def veth(
    name: str,
    peer: str,
    *,
    index: int,
    peer_index: int,
    mac: bytes,
    peer_mac: bytes,
    mtu: int,
    namespace: int,
    up: bool,
) -> Message:
    """A pair: one end in the socket's namespace, the other one born in another.

    Args: index, peer_index: their numbers, each free in its namespace, 0: the kernel's choice; namespace: its descriptor, which
    the kernel uses during the exchange alone; up: our end."""
    flags = _UP if up else 0
    other = _link.pack(socket.AF_UNSPEC, 0, peer_index, 0, 0) + text(_IFLA_IFNAME, peer)
    other += attribute(_IFLA_ADDRESS, peer_mac) + number(_IFLA_MTU, mtu) + number(_IFLA_NET_NS_FD, namespace)
    body = _link.pack(socket.AF_UNSPEC, 0, index, flags, flags) + text(_IFLA_IFNAME, name)
    body += attribute(_IFLA_ADDRESS, mac) + number(_IFLA_MTU, mtu)
    data = nested(_INFO_DATA, nested(_VETH_PEER, other))
    body += nested(_IFLA_LINKINFO, text(_INFO_KIND, "veth"), data)
    return Message(_NEWLINK, _NEW, body, f"veth {name}")


def link_up(index: int) -> Message:
    """Bring a link up."""
    return Message(_NEWLINK, REQUEST | ACK, _link.pack(socket.AF_UNSPEC, 0, index, _UP, _UP), f"link {index} up")


def link_down(index: int) -> Message:
    """Take a link down."""
    return Message(_NEWLINK, REQUEST | ACK, _link.pack(socket.AF_UNSPEC, 0, index, 0, _UP), f"link {index} down")


def delete_link(name: str) -> Message:
    """Remove a link, and its peer. The caller waits for 30 ms, and does not if it closes the namespace's descriptor instead."""
    body = _link.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + text(_IFLA_IFNAME, name)
    return Message(_DELLINK, REQUEST | ACK, body, f"delete {name}")


def address(index: int, value: str, prefix: int) -> Message:
    """Give a link an IPv4 address."""
    packed = socket.inet_aton(value)
    body = _address.pack(socket.AF_INET, prefix, 0, _GLOBAL, index)
    body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    return Message(_NEWADDR, _NEW, body, f"address {value}/{prefix}")


def link_route(index: int, destination: str, prefix: int = 32) -> Message:
    """What is at the other end of a link."""
    body = _route.pack(socket.AF_INET, prefix, 0, 0, _MAIN_TABLE, _STATIC, _LINK, _UNICAST, 0)
    body += attribute(_RTA_DST, socket.inet_aton(destination)) + number(_RTA_OIF, index)
    return Message(_NEWROUTE, _NEW, body, f"route {destination}/{prefix}")


def default_route(index: int, gateway: str) -> Message:
    """Everything else goes through a gateway at the other end of a link."""
    body = _route.pack(socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _STATIC, _GLOBAL, _UNICAST, _ONLINK)
    body += attribute(_RTA_GATEWAY, socket.inet_aton(gateway)) + number(_RTA_OIF, index)
    return Message(_NEWROUTE, _NEW, body, f"route via {gateway}")


def neighbour(index: int, value: str, mac: bytes) -> Message:
    """A permanent neighbour, whose hardware address is not asked for."""
    body = _neighbour.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
    body += attribute(_NDA_DST, socket.inet_aton(value)) + attribute(_NDA_LLADDR, mac)
    return Message(_NEWNEIGH, _NEW, body, f"neighbour {value}")
