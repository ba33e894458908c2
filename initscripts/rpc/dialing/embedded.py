"""IPv4 addresses that IPv6 addresses carry: a translator or a tunnel on the way would connect to those.

Pure. What is known by its prefix or its form; a translator with a prefix of its own network's is the operator's to deny.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from sockd_initscripts.rpc.dialing.addresses import IpAddress

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")
_LOW_32 = (_NAT64, _COMPATIBLE, _TRANSLATED)
"""RFC 6052; RFC 4291, 2.5.5.1; RFC 2765 (SIIT)."""
_LOCAL_FORMS = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
"""RFC 6052, 2.2: the bytes with the address, for prefixes of 48, 56, 64 and 96 bits below the one of RFC 8215."""
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""RFC 5214, 6.1: the interface's identifier begins so, whatever the prefix."""


def embedded(address: IpAddress) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses in it; none in one of IPv4."""
    if address.version == 4:
        return
    packed = address.packed
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    yield from address.teredo or ()
    if any(address in network for network in _LOW_32) or packed[8:12] in _ISATAP:
        yield ipaddress.IPv4Address(packed[12:])
    if address in _NAT64_LOCAL:
        for form in _LOCAL_FORMS:
            yield ipaddress.IPv4Address(bytes(packed[number] for number in form))
