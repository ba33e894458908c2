"""What a function with a private network may reach: `egress` of its sockd.toml, parsed.

Pure. A rule is a network, an address, a name or `internet`, with a port, a range of ports or none, and a protocol or both:

    10.0.0.0/8:5432   192.168.7.9   api.example.com:443   *.example.com:443   internet:443   10.1.2.3:53/udp

or host:5432 for a port of the host's loopback, or function:resize for a function of the worker.

No rules at all are the default, the internet; an empty list is nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from types import MappingProxyType

from sockd.base.errors import BadFunctionConfig
from sockd.isolation.networks.dns import HOST_NAME
from sockd.linux.network.resolv_conf import PRIVATE_NAMESERVER

INTERNET = "internet"
HOST = "host"
NEVER = tuple(IPv4Network(each) for each in ("0.0.0.0/8", "169.254.0.0/16", "240.0.0.0/4"))
"""What no rule opens, nor an answer of DNS: this network, link-local addresses with the clouds' metadata, reserved ones."""
UNROUTED = tuple(IPv4Network(each) for each in ("127.0.0.0/8", "224.0.0.0/4"))
"""What the kernel never sends on: loopback and multicast."""
PRIVATE = tuple(
    IPv4Network(each)
    for each in (
        *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    )
)
"""What is not the internet either: IANA's special-purpose addresses of IPv4 (RFC 6890)."""
THE_HOST = IPv4Network(PRIVATE_NAMESERVER)
"""Where that is: the gateway, which no other rule opens (`NEVER`)."""
FUNCTIONS_PORT = 80
"""The port of the gateway: where functions of the worker are called, as http://host.sockd.internal/run/NAME."""
NAMES_OF_THE_HOST = frozenset((HOST_NAME.encode(), PRIVATE_NAMESERVER.encode()))
"""Host headers of requests to it."""
MOST_TEXT = 300
_FUNCTION = "function:"
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\.?", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)
_RULE = re.compile(
    r"(?P<where>[^:\s]+?)(?::(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?(?:/(?P<protocol>tcp|udp))?"
)
_MOST_NAME, _MOST_LABEL = 253, 63
_FORM = "not NETWORK, ADDRESS, NAME, *.NAME or internet, with :PORT or :FIRST-LAST, with /tcp or /udp"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry. Either `network` or `name` is set, or neither: the internet."""

    network: IPv4Network | None
    name: str
    """In lower case, without a dot at its end; with `*.` in front it stands for all names below."""
    ports: tuple[int, int] | None
    """The first and the last; None: all."""
    protocol: str
    """tcp or udp; empty: both."""
    function: str = ""
    """A function of the worker, which is called over the gateway (`THE_HOST`)."""

    @property
    def is_host(self) -> bool:
        """Whether this is a port of the host."""
        return self.network == THE_HOST

    def covers_name(self, name: str) -> bool:
        """Whether this is the rule of a name in lower case."""
        return covers(self.name, name)


def covers(pattern: str, name: str) -> bool:
    """Whether a rule's name, maybe with `*.` in front, stands for a name in lower case."""
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern != ""


@dataclass(frozen=True, slots=True)
class Egress:
    """All rules of a function; equal ones allow the same."""

    rules: tuple[Rule, ...]

    @property
    def has_names(self) -> bool:
        return any(rule.name for rule in self.rules)

    @property
    def has_internet(self) -> bool:
        return any(rule.network is None and not rule.name for rule in self.rules)

    @property
    def digest(self) -> str:
        """Sixteen digits that are the same for equal rules."""
        return hashlib.sha256(repr(self.rules).encode()).hexdigest()[:16]

    def resolves(self, name: str) -> bool:
        """Whether the function may ask for the addresses of a name in lower case."""
        has_host = name == HOST_NAME and bool(self.gateway_ports)
        return has_host or self.has_internet or any(rule.covers_name(name) for rule in self.rules)

    @property
    def host_ports(self) -> list[int]:
        """The ports of the host's loopback."""
        return [rule.ports[0] for rule in self.rules if rule.is_host and rule.ports is not None and not rule.function]

    @property
    def functions(self) -> frozenset[str]:
        """The functions of the worker that may be called."""
        return frozenset(rule.function for rule in self.rules if rule.function)

    @property
    def gateway_ports(self) -> list[int]:
        """The ports of the gateway that are open."""
        return [*self.host_ports, *([FUNCTIONS_PORT] if self.functions else [])]


EVERYTHING_PUBLIC = Egress((Rule(None, "", None, ""),))
"""The default: the internet, all ports."""


Denied = Mapping[IPv4Network, str]
"""Networks of which no rule may be a part, each with the setting of the worker that says so."""


def parse(entries: Sequence[str] | None, *, most: int, denied: Denied = MappingProxyType({})) -> Egress:
    """The rules of a function, as they are given.

    Args: entries: as in sockd.toml; None: the default; most: rules of one function.
    Raises: BadFunctionConfig: which entry is wrong and what to write instead."""
    if too_many := excess(entries, most):
        raise BadFunctionConfig(too_many)
    rules, errors = recorded(entries, denied=denied)
    if errors:
        raise BadFunctionConfig(errors[0])
    return rules


def recorded(entries: Sequence[str] | None, *, denied: Denied = MappingProxyType({})) -> tuple[Egress, Sequence[str]]:
    """Rules that were accepted before, maybe under other settings: an entry that `parse` refuses now opens nothing.

    Returns: the rules; of each entry that is left out, which it is and why."""
    if entries is None:
        return EVERYTHING_PUBLIC, ()
    rules, errors = [], []
    for number, entry in enumerate(entries, 1):
        try:
            rules.append(_rule(entry, dict.fromkeys((*NEVER, *UNROUTED), "") | dict(denied)))
        except ValueError as error:
            shown = entry if isinstance(entry, str) else repr(entry)
            errors.append(f"egress, entry {number}, {shown[:80]!r}: {error}")
    return Egress(tuple(dict.fromkeys(rules))), errors


def excess(entries: Sequence[str] | None, most: int) -> str:
    """What to say if there are too many rules; else empty."""
    count = len(entries or ())
    return f"egress has {count} rules, and may have {most} (network.max_rules)" if count > most else ""


def _rule(entry: str, denied: Denied) -> Rule:
    if not isinstance(entry, str) or len(entry) > MOST_TEXT:
        raise ValueError(f"a rule is a text of at most {MOST_TEXT} characters")
    if entry.startswith(_FUNCTION):
        return Rule(THE_HOST, "", (FUNCTIONS_PORT, FUNCTIONS_PORT), "tcp", _function(entry.removeprefix(_FUNCTION)))
    if entry.count(":") > 1 or entry.startswith("["):
        raise ValueError("private networks have no IPv6; give an IPv4 network, a name or internet")
    found = _split(entry)
    where, protocol = found["where"], found["protocol"] or ""
    ports = _ports(found["first"], found["last"])
    if where == HOST and ports is not None:
        if ports[0] != ports[1] or protocol == "udp":
            raise ValueError("a port of the host is one port of TCP, such as host:5432")
        return Rule(THE_HOST, "", ports, "tcp")
    if where == INTERNET:
        return Rule(None, "", ports, protocol)
    if re.fullmatch(r"[0-9./]+", where):
        return Rule(_network(where, denied), "", ports, protocol)
    return Rule(None, _name(where), ports, protocol)


def _function(name: str) -> str:
    if not _FUNCTION_NAME.fullmatch(name):
        raise ValueError("a function's name is 1 to 64 of A-Z a-z 0-9 _ -, such as function:resize")
    return name


def _split(entry: str) -> re.Match[str]:
    found = _RULE.fullmatch(entry)
    if found is None:
        raise ValueError(_FORM)
    return found


def _ports(first: str | None, last: str | None) -> tuple[int, int] | None:
    if first is None:
        return None
    low, high = int(first), int(last or first)
    if not 1 <= low <= high <= 65535:
        raise ValueError("ports are 1 to 65535, the lower one first")
    return low, high


def _name(where: str) -> str:
    """A name that DNS can have, as a rule has it. Raises: ValueError, for what looks like a name and is meant otherwise, too."""
    name = where.lower().rstrip(".")
    if re.fullmatch(r"[0-9.]+-[0-9.]+", name):
        raise ValueError("a range of addresses is given as networks, such as 10.0.0.0/28")
    if not where.isascii():
        raise ValueError("a name with other letters than ASCII's is given as DNS has it, with xn--")
    if len(where) > _MOST_NAME or any(len(label) > _MOST_LABEL for label in name.split(".")):
        raise ValueError(f"a name has at most {_MOST_NAME} characters, and {_MOST_LABEL} between two dots")
    if not _NAME.fullmatch(where):
        raise ValueError(_FORM)
    if name in _WORDS:
        raise ValueError(_WORDS[name])
    *_, last = name.split(".")
    if last == "localhost":
        raise ValueError("localhost is the sandbox's own loopback, which needs no rule")
    if _NUMBER.fullmatch(last):
        raise ValueError("no name ends in a number, and an address has four of 0 to 255, such as 10.1.2.3")
    return name


_WORDS = {
    INTERNET: f'write "{INTERNET}", in small letters',
    "none": "none is no rule: an empty list allows nothing, and so does --egress none as the only one",
    HOST: 'a port of the host is given as host:PORT, such as host:5432; host alone is a network (network = "host")',
    "private": "private is a network and no rule",
}
"""What settings call other things by, and no name of DNS is meant by."""


def _network(where: str, denied: Denied) -> IPv4Network:
    try:
        network = IPv4Network(where)
    except ValueError as error:
        raise ValueError(f"not a network of IPv4 ({error}); such as 10.0.0.0/8 or 10.1.2.3") from None
    for never, setting in denied.items():
        if network.subnet_of(never):
            raise ValueError(f"{never} is never reached from a private network{setting and f' ({setting})'}")
    return network
