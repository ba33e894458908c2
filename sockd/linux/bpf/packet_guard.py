"""The eBPF program that refuses packets to networks, run for each packet of a cgroup's sockets as it leaves (cgroup_skb/egress).

The programs at connect(2) and sendmsg(2) see the address that a process names. A segment routing header of IPv6 (IPV6_RTHDR),
for which a process needs no capability, names another one that the packet is sent to first; so does a source route of IPv4
(IP_OPTIONS, IP_RETOPTS). This program reads the address in the packet, whatever the way on which it came there.

Pure: instructions, for `bpf.load`. Its maps are those of `address_guard`.
"""

from __future__ import annotations

import struct

from sockd.linux.bpf import assembler as asm
from sockd.linux.bpf.assembler import R0, R1, R2, R3, R4, R6, R7, R8, R10

_PROTOCOL = 16
"""Offset in struct __sk_buff: the Ethernet type, in network byte order."""
_IPV4, _IPV6 = (int.from_bytes(kind.to_bytes(2), "little") for kind in (0x0800, 0x86DD))
_IPV4_WITHIN_IPV6 = struct.unpack("=I", b"\0\0\xff\xff")[0]
_BYTE, _PREFIX_BITS, _ADDRESS, _PORT = -32, -24, -20, -4
"""On the stack. The second and the third are the key of a network, the last two that of an exception."""
_TCP, _UDP = 6, 17
_LENGTH_MASK, _IPV6_HEADER_BYTES = 0x0F, 40


def refuse_packets(networks_fd: int, exceptions_fd: int, netns_cookie: int) -> asm.Code:
    """Refuse with EPERM packets to what is in the first map and not, with its port, in the second, in one network namespace.

    A port is that of TCP or UDP right behind the header; a packet with another protocol is no exception."""
    code: list[asm.Instruction | str] = [asm.copy(R6, R1), asm.move(R1, 128), asm.store32(R10, _PREFIX_BITS, R1)]
    code += [asm.move(R1, 0), asm.store32(R10, _PORT, R1), asm.load32(R7, R6, _PROTOCOL)]
    code += [asm.jump_if_equal(R7, _IPV4, "IPv4"), asm.jump_if_equal(R7, _IPV6, "IPv6"), *asm.leave(1)]
    code += ["IPv4", *_load(16, _ADDRESS + 12, 4)]
    code += [asm.move(R1, 0), asm.store32(R10, _ADDRESS, R1), asm.store32(R10, _ADDRESS + 4, R1)]
    code += [asm.move64(R1, _IPV4_WITHIN_IPV6), asm.store32(R10, _ADDRESS + 8, R1)]
    code += [asm.jump("network"), "IPv6", *_load(24, _ADDRESS, 16)]
    code += ["network", *asm.lookup(networks_fd, _PREFIX_BITS), asm.jump_if_equal(R0, 0, "allow")]
    code += [asm.copy(R1, R6), asm.call(asm.Helper.GET_NETNS_COOKIE), asm.move64(R1, netns_cookie)]
    code += [asm.jump_if_same(R0, R1, "port"), "allow", *asm.leave(1)]
    code += ["port", asm.jump_if_equal(R7, _IPV4, "port of IPv4")]
    code += [*_load(6, _BYTE, 1), asm.move(R8, _IPV6_HEADER_BYTES), asm.jump("protocol")]
    code += ["port of IPv4", *_load(0, _BYTE, 1), asm.load8(R8, R10, _BYTE), asm.mask(R8, _LENGTH_MASK)]
    code += [asm.shift_left(R8, 2), *_load(9, _BYTE, 1)]
    code += ["protocol", asm.load8(R1, R10, _BYTE), asm.jump_if_equal(R1, _TCP, "ports")]
    code += [asm.jump_if_equal(R1, _UDP, "ports"), *asm.leave(0)]
    code += ["ports", asm.copy(R2, R8), asm.add_constant(R2, 2), *_load_at_r2(_PORT, 2)]
    code += [*asm.lookup(exceptions_fd, _ADDRESS), asm.jump_if_equal(R0, 0, "refuse"), *asm.leave(1)]
    return [*code, "refuse", *asm.leave(0)]


def _load(offset: int, stack: int, size: int) -> asm.Code:
    """Copy bytes of the packet, from its IP header on, to the stack; refuse the packet if it is too short for that."""
    return [asm.move(R2, offset), *_load_at_r2(stack, size)]


def _load_at_r2(stack: int, size: int) -> asm.Code:
    code: asm.Code = [asm.copy(R1, R6), *asm.stack_address(R3, stack), asm.move(R4, size)]
    return [*code, asm.call(asm.Helper.SKB_LOAD_BYTES), asm.jump_if_not_equal(R0, 0, "refuse")]
