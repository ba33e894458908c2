"""Where a connection comes from, as far as a limit for each source needs to know it.

Owns nothing. A peer on this machine is its uid, which the kernel tells (20 µs), because all local users share an address; any
other peer is its address. One customer of a provider has a /64 of IPv6 at least, so that is one source.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv6Address, ip_address

from sockd.http.server.transport import Transport
from sockd.linux.network.socket_owners import owner

IPV6_BITS = 64
UNKNOWN = "unknown"
"""The peer has gone."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


def source_of(transport: Transport) -> str:
    """The source of a connection: `uid 1000`, `192.0.2.7`, `2001:db8::/64`."""
    theirs, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(theirs, tuple) or not isinstance(ours, tuple):
        return _source_at_unix_socket(transport)
    host: str = theirs[0].partition("%")[0]
    address = ip_address(host)
    if address.is_loopback or host == ours[0].partition("%")[0]:
        uid = owner(theirs[:2], ours[:2])
        if uid is not None:
            return f"uid {uid}"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        prefix = int(address) >> (128 - IPV6_BITS) << (128 - IPV6_BITS)
        return f"{IPv6Address(prefix)}/{IPV6_BITS}"
    return host


def _source_at_unix_socket(transport: Transport) -> str:
    """SO_PEERCRED (unix(7)): who connected."""
    sock = transport.get_extra_info("socket")
    try:
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (AttributeError, OSError):
        return UNKNOWN
    return f"uid {_CREDENTIALS.unpack(peer)[1]}" if sock.family == socket.AF_UNIX else UNKNOWN
