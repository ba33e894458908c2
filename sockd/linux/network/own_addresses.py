"""The addresses at which this network namespace answers, as files in /proc list them.

Owns nothing; reads two files.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

PROC_NET = Path("/proc/self/net")
"""What /proc/net leads to; a /proc with the option subset=pid, as of confined processes, has no other (proc(5))."""
LOOPBACK = (
    *(IPv4Network("0.0.0.0/8"), IPv4Network("127.0.0.0/8")),
    *(IPv6Network("::/128"), IPv6Network("::1/128")),
)
"""0.0.0.0 and :: included: connect(2) takes them for the loopback address."""
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def own_addresses(proc_net: Path = PROC_NET) -> list[IPv4Network | IPv6Network]:
    """The loopback networks, and each address of an interface. Raises: OSError."""
    ipv4 = {IPv4Address(each) for each in _LOCAL.findall((proc_net / "fib_trie").read_text())}
    ipv6_file = proc_net / "if_inet6"  # absent where IPv6 is switched off
    lines = ipv6_file.read_text().splitlines() if ipv6_file.exists() else []
    ipv6 = {IPv6Address(int(line.split()[0], 16)) for line in lines}
    outside: list[IPv4Network | IPv6Network] = [*map(IPv4Network, sorted(ipv4)), *map(IPv6Network, sorted(ipv6))]
    return [*LOOPBACK, *(each for each in outside if not each.is_loopback)]
