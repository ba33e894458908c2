"""Networks that nothing in a cgroup may send to from the host's network namespace: eBPF programs at connect(2) and sendmsg(2),
and for each packet (`packet_guard`).

Owns nothing: as with `port_guard`, the programs belong to the cgroup, and those of the cgroup that a socket was made in are
run. An address of IPv4 is looked up in its form within IPv6 (::ffff:0:0/96), so that one map is enough and neither form is a
way around the other.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from sockd.linux.bpf import assembler as asm
from sockd.linux.bpf import bpf, packet_guard
from sockd.linux.bpf.port_guard import attach_program, netns_cookie

Network = IPv4Network | IPv6Network
Endpoint = tuple[str, int]
"""An address and a port."""
MOST_NETWORKS = 1024
MOST_EXCEPTIONS = 256
DNS_PORT = 53
_USER_IP4, _USER_IP6, _USER_PORT = 4, 8, 24
"""Offsets in struct bpf_sock_addr, the context."""
_PREFIX_BITS, _ADDRESS, _PORT = -24, -20, -4
"""On the stack. The first two are the key of a network, the last two that of an exception."""
_PRESENT = b"\1\0\0\0"
_IPV4_WITHIN_IPV6 = struct.unpack("=I", b"\0\0\xff\xff")[0]


def deny_networks(directory: str, denied: Sequence[Network], exceptions: Iterable[Endpoint] = ()) -> str:
    """Guard a cgroup of v2 and all below it, until it is removed.

    Args: denied: at most `MOST_NETWORKS`; exceptions: addresses and ports that stay allowed, at most `MOST_EXCEPTIONS`.
    Returns: why packets are not guarded, on a kernel whose programs for packets do not know network namespaces (before 6.15);
        else nothing. A source route leads such packets to denied networks.
    Raises: OSError: this kernel has no cgroup BPF, or we may not use it, or there are too many networks."""
    with ExitStack() as maps:
        networks_fd = bpf.prefix_map(16, 4, MOST_NETWORKS)
        maps.callback(os.close, networks_fd)
        exceptions_fd = bpf.hash_map(20, 4, MOST_EXCEPTIONS)
        maps.callback(os.close, exceptions_fd)
        for network in denied:
            bits = network.prefixlen + (96 if network.version == 4 else 0)
            bpf.update(networks_fd, struct.pack("=I", bits) + _packed(network.network_address), _PRESENT)
        for host, port in exceptions:
            key = _packed(ip_address(host)) + struct.pack("=I", socket.htons(port))
            bpf.update(exceptions_fd, key, _PRESENT)
        for at, is_ipv6 in _PLACES.items():
            code = refuse_networks(networks_fd, exceptions_fd, netns_cookie(), is_ipv6=is_ipv6)
            attach_program(directory, bpf.ProgramType.CGROUP_SOCK_ADDR, {at: code})
        packets = packet_guard.refuse_packets(networks_fd, exceptions_fd, netns_cookie())
        try:
            attach_program(directory, bpf.ProgramType.CGROUP_SKB, {bpf.Attach.INET_EGRESS: packets})
        except OSError as error:
            return f"packets with a source route are not guarded: {error}"
        return ""


def _packed(address: IPv4Address | IPv6Address) -> bytes:
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


_PLACES = {
    bpf.Attach.INET4_CONNECT: False,
    bpf.Attach.INET6_CONNECT: True,
    bpf.Attach.UDP4_SENDMSG: False,
    bpf.Attach.UDP6_SENDMSG: True,
}


def refuse_networks(networks_fd: int, exceptions_fd: int, netns_cookie: int, *, is_ipv6: bool) -> asm.Code:
    """Refuse with EPERM to send to what is in the first map and not in the second, in one network namespace."""
    code: list[asm.Instruction | str] = [asm.copy(asm.R6, asm.R1), asm.move(asm.R1, 128)]
    code.append(asm.store32(asm.R10, _PREFIX_BITS, asm.R1))
    for word in range(4):
        if is_ipv6:
            code.append(asm.load32(asm.R1, asm.R6, _USER_IP6 + 4 * word))
        elif word == 3:
            code.append(asm.load32(asm.R1, asm.R6, _USER_IP4))
        else:
            code.append(asm.move64(asm.R1, _IPV4_WITHIN_IPV6 if word == 2 else 0))
        code.append(asm.store32(asm.R10, _ADDRESS + 4 * word, asm.R1))
    return [
        *code,
        asm.load32(asm.R1, asm.R6, _USER_PORT),
        asm.store32(asm.R10, _PORT, asm.R1),
        *asm.lookup(networks_fd, _PREFIX_BITS),
        asm.jump_if_equal(asm.R0, 0, "allow"),
        *asm.lookup(exceptions_fd, _ADDRESS),
        asm.jump_if_equal(asm.R0, 0, "denied"),
        "allow",
        *asm.leave(1),
        "denied",
        asm.copy(asm.R1, asm.R6),
        asm.call(asm.Helper.GET_NETNS_COOKIE),
        asm.move64(asm.R1, netns_cookie),
        asm.jump_if_same(asm.R0, asm.R1, "refuse"),
        *asm.leave(1),
        "refuse",
        *asm.leave(0),
    ]
