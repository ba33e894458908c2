"""resolv.conf(5): the nameservers that this host asks.

Owns nothing; reads one file.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

RESOLV_CONF = Path("/etc/resolv.conf")
PRIVATE_NAMESERVER = "169.254.1.1"
"""The name server of private networks: their gateway."""
MOST_NAMESERVERS = 3
"""As many as resolvers take notice of (MAXNS)."""


def nameservers(file: Path = RESOLV_CONF) -> list[str]:
    """Their addresses, in order; none, if there is no such file."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = [words[1] for line in lines if len(words := line.split()) > 1 and words[0] == "nameserver"]
    return [each for each in found if _is_address(each)][:MOST_NAMESERVERS]


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        return False
