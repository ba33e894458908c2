"""The rules as text for nft(8): the router's table, a function's chain in it, and the host's own small table.

Pure. Each rule is a line, and each of them is needed: a test removes one after the other and finds something that passes, or
something that no longer does. A connection is marked when its function's rules accept it; the mark is that of the rules as they
are now, so established connections cost one comparison and are judged anew when the rules change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from sockd.isolation.networks.egress import PRIVATE, Egress, Rule
from sockd.linux.network.resolv_conf import PRIVATE_NAMESERVER

TABLE = "sockd"
POLICIES = "policies"
"""The map from a sandbox's address to its function's chain."""
CLASSES = "classes"
"""The map from a sandbox's address to the chain with the limits of its class."""
LEAST_CONNECTIONS = 64
"""The connections of a sandbox of the smallest class, if the settings allow as many."""
_STEP = 4
HOSTS = "hosts"
"""The map from a sandbox's address to the chain with the ports of the host that its function may reach."""
UPLINK = "up"
"""The router's link to the host."""
HOST = "host"
"""The set of the host's own addresses (`host_addresses`)."""
GATEWAY = PRIVATE_NAMESERVER
"""What sandboxes have as their gateway, and as their nameserver."""
MOST_SOURCES = 1 << 16
REFUSED, LIMITED, PROXIED = "refused", "limited", "proxied"
"""Counters: of packets that no rule allows, or that go beyond a sandbox's limits; of connections to ports of the host."""
REMEMBERED_S = 120
"""How long the kernel's conntrack remembers a TCP connection that has ended (nf_conntrack_tcp_timeout_time_wait)."""
MOST_ANSWERS = 1 << 12
"""Addresses that a name in rules may stand for at a time, with `*.` all names below it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A function's chain: its name and, for each name in its rules, the set that DNS answers are added to."""

    name: str
    mark: int
    egress: Egress

    def sets(self) -> dict[str, str]:
        """The sets, each with the name in rules that it is for; those of other rules of the same function have others."""
        names = dict.fromkeys(rule.name for rule in self.egress.rules if rule.name)
        return {f"{self.name}-{self.mark}-{number}": name for number, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox: open connections; new ones at once, and again in each two minutes; DNS queries in a
    second."""

    connections: int
    new_connections: int
    queries: int


def classes(most: Limits) -> list[Limits]:
    """The limits of the classes of sandboxes (`connection_shares`): each has a quarter of the connections of the one before."""
    sizes = [most.connections]
    while sizes[-1] // _STEP >= LEAST_CONNECTIONS:
        sizes.append(sizes[-1] // _STEP)
    return [Limits(each, max(1, most.new_connections * each // most.connections), most.queries) for each in sizes]


def class_chain(connections: int) -> str:
    """The chain with the limits of a class."""
    return f"limits-{connections}"


def host_chain(chain: str) -> str:
    """The chain with the ports of the host that a function may reach. Args: chain: the function's."""
    return f"{chain}-host"


def router(never: Sequence[IPv4Network], most: Limits) -> str:
    """The router's table. Args: never: what no rule of a function opens; most: what one sandbox may have.

    What goes to the gateway, to the resolver above all, is not tracked: each query has a port of its own, so that a few sandboxes
    would fill the table of tracked connections.

    A connection is counted while it is open, but the host remembers one for two minutes after its end: the second limit bounds
    those. A query above its limit is dropped, so that the resolver of the sandbox asks again; the rest is refused."""
    never = [each for each in dict.fromkeys(never) if not _is_covered(each, never)]
    private = [each for each in PRIVATE if each not in never and not _is_covered(each, never)]
    return f"""
table inet {TABLE} {{
    set never {{ type ipv4_addr; flags interval; elements = {{ {_listed(never)} }}; }}
    set private {{ type ipv4_addr; flags interval; elements = {{ {_listed(private)} }}; }}
    set {HOST} {{ type ipv4_addr; }}
    set askers {{ type ipv4_addr; size {MOST_SOURCES}; flags dynamic,timeout; timeout {REMEMBERED_S}s; }}
    counter {REFUSED} {{ }}
    counter {LIMITED} {{ }}
    counter {PROXIED} {{ }}
    map {POLICIES} {{ type ipv4_addr : verdict; }}
    map {CLASSES} {{ type ipv4_addr : verdict; }}
    map {HOSTS} {{ type ipv4_addr : verdict; }}
    chain untracked {{
        type filter hook prerouting priority raw; policy accept;
        iifname != {UPLINK} ip daddr {GATEWAY} notrack
    }}
    chain untracked_answers {{
        type filter hook output priority raw; policy accept;
        ip saddr {GATEWAY} notrack
    }}
    chain refuse {{
        ct state established meta l4proto tcp counter name {REFUSED} reject with tcp reset
        counter name {REFUSED} reject with icmpx admin-prohibited
    }}
    chain beyond {{
        counter name {LIMITED} reject with icmpx no-route
    }}
{"".join(map(_class, classes(most)))}    chain forward {{
        type filter hook forward priority filter; policy drop;
        ct state invalid drop
        iifname {UPLINK} ct state established,related accept
        ip daddr @never goto refuse
        ip daddr @{HOST} goto refuse
        meta l4proto != {{ tcp, udp }} goto refuse
        ct state new ip saddr vmap @{CLASSES}
        ip saddr vmap @{POLICIES}
        goto refuse
    }}
    chain input {{
        type filter hook input priority filter; policy drop;
        iifname != {UPLINK} ip daddr {GATEWAY} udp dport 53 jump ask
        iifname != {UPLINK} ip daddr {GATEWAY} meta l4proto tcp ip saddr vmap @{HOSTS}
        iifname != {UPLINK} ip daddr {GATEWAY} tcp flags & syn == 0 reject with tcp reset
        goto refuse
    }}
    chain ask {{
        update @askers {{ ip saddr limit rate over {_a_second(most)} }} counter name {LIMITED} drop
        accept
    }}
    chain nat {{
        type nat hook postrouting priority srcnat;
        oifname {UPLINK} masquerade
    }}
}}
"""


def _class(limits: Limits) -> str:
    """The sets and the chain of a class of sandboxes."""
    connections, openers = f"connections-{limits.connections}", f"openers-{limits.connections}"
    return f"""\
    set {connections} {{ type ipv4_addr; size {MOST_SOURCES}; flags dynamic; }}
    set {openers} {{ type ipv4_addr; size {MOST_SOURCES}; flags dynamic,timeout; timeout {REMEMBERED_S}s; }}
    chain {class_chain(limits.connections)} {{
        add @{connections} {{ ip saddr ct count over {limits.connections} }} goto beyond
        update @{openers} {{ ip saddr limit rate over {_a_minute(limits)} }} goto beyond
    }}
"""


def host(table: str, link: str, address: str) -> str:
    """The host's table: what the router sends goes on under the host's address, and to nothing of the host itself.

    A packet is judged by the destination that it came with, before the host's own rules translate it: a port that the host
    publishes for a container is the host's. Args: link: the host's end of the uplink; address: the router's."""
    own = f"""
    chain own {{
        type filter hook prerouting priority dstnat - 10; policy accept;
        iifname {link} fib daddr type local reject with icmp admin-prohibited
    }}"""
    return _host(table, link, address, own)


def host_without_fib(table: str, link: str, address: str) -> str:
    """The host's table on a kernel without the expression fib: nothing of the host itself, and nothing that it translates."""
    own = f"""
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname {link} reject with icmp admin-prohibited
    }}
    chain translated {{
        type filter hook forward priority filter; policy accept;
        iifname {link} ct status dnat reject with icmp admin-prohibited
    }}"""
    return _host(table, link, address, own)


def _host(table: str, link: str, address: str, own: str) -> str:
    return f"""
add table ip {table}
delete table ip {table}
table ip {table} {{{own}
    chain nat {{
        type nat hook postrouting priority srcnat;
        ip saddr {address} oifname != {link} masquerade
    }}
}}
"""


def chain(new: Chain, old: Chain | None = None) -> str:
    """A function's chain, made or changed in one transaction. Args: old: what it was; its sets go."""
    lines = [f"add chain inet {TABLE} {new.name}", f"flush chain inet {TABLE} {new.name}"]
    host = host_chain(new.name)
    lines += [f"add chain inet {TABLE} {host}", f"flush chain inet {TABLE} {host}"]
    for port in new.egress.gateway_ports:
        lines.append(
            f"add rule inet {TABLE} {host} tcp dport {port} tcp flags & (syn | ack) == syn counter name {PROXIED}"
        )
        lines.append(f"add rule inet {TABLE} {host} tcp dport {port} accept")
    options = f"type ipv4_addr; flags timeout; size {MOST_ANSWERS};"
    sets = new.sets()
    lines += [f"add set inet {TABLE} {name} {{ {options} }}" for name in sets]
    named = {pattern: name for name, pattern in sets.items()}
    add = f"add rule inet {TABLE} {new.name}"
    lines.append(f"{add} ct mark {new.mark} accept")
    lines += [
        f"{add} {_match(rule, named.get(rule.name))} ct mark set {new.mark} accept"
        for rule in new.egress.rules
        if not rule.is_host
    ]
    return "\n".join([*lines, *_removal_of_sets(old)]) + "\n"


def removal_of(old: Chain) -> str:
    """Remove a function's chain; nothing may jump to it any more."""
    lines = [f"flush chain inet {TABLE} {old.name}", *_removal_of_sets(old), f"delete chain inet {TABLE} {old.name}"]
    lines += [f"{verb} chain inet {TABLE} {host_chain(old.name)}" for verb in ("flush", "delete")]
    return "\n".join(lines) + "\n"


def _removal_of_sets(old: Chain | None) -> Iterable[str]:
    return [f"delete set inet {TABLE} {name}" for name in old.sets()] if old is not None else []


def _match(rule: Rule, names: str | None) -> str:
    if rule.network is not None:
        where = f"ip daddr {rule.network}"
    else:
        where = f"ip daddr @{names}" if names else "ip daddr != @private"
    ports = "" if rule.ports is None else f" th dport {rule.ports[0]}-{rule.ports[1]}"
    return where + (f" meta l4proto {rule.protocol}" if rule.protocol else "") + ports


def _a_minute(most: Limits) -> str:
    return f"{-(-most.new_connections * 60 // REMEMBERED_S)}/minute burst {most.new_connections} packets"


def _a_second(most: Limits) -> str:
    return f"{most.queries}/second burst {most.queries} packets"


def _is_covered(network: IPv4Network, by: Sequence[IPv4Network]) -> bool:
    return any(network.subnet_of(other) and network != other for other in by)


def _listed(networks: Sequence[IPv4Network]) -> str:
    return ", ".join(map(str, networks))
