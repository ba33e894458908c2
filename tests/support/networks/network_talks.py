"""What happens on connections of functions, by their rules: with the internet, with what a name stands for, with the host."""

from __future__ import annotations

import contextlib
import errno
import socket
from ipaddress import IPv4Address

from sockd.isolation.networks import egress, ruleset
from sockd.isolation.networks.ruleset import GATEWAY
from sockd.linux.network import network_namespaces, nfnetlink
from sockd.linux.network.netlink import NETFILTER, NetlinkSocket
from tests.support.networks.network_lab import (
    OTHER_PORT,
    PORT,
    PRIVATE,
    PUBLIC,
)
from tests.support.networks.network_stage import BY_NAME, MOST, NAME, OF_THE_HOST, RULES, Stage


def talk(stage: Stage) -> dict[str, bool]:
    """What happens on connections, as far as rules decide on it."""
    facts: dict[str, bool] = {}
    lab, namespace = stage.lab, stage.attacker.namespace
    assert namespace is not None
    listener = lab.listen(lab.internet, "0.0.0.0", PORT)
    listener.settimeout(stage.wait_s)
    with lab.tcp(namespace) as ours:
        ours.settimeout(stage.wait_s)
        facts["an allowed connection is made"] = ours.connect_ex((PRIVATE, PORT)) == 0
        if facts["an allowed connection is made"]:
            theirs, _ = listener.accept()
            with theirs:
                theirs.settimeout(stage.wait_s)
                ours.sendall(b"question")
                facts["it is answered"] = _received(theirs) == b"question" and theirs.send(b"answer") == 6
                facts["the answer arrives"] = _received(ours) == b"answer"
    with lab.tcp(namespace) as ours:
        ours.settimeout(stage.wait_s)
        facts["a refused connection fails at once"] = ours.connect_ex((PRIVATE, OTHER_PORT)) == errno.EHOSTUNREACH
    facts["connections that end are limited as well"] = _are_limited(stage, listener)
    closed = lab.udp(namespace)
    closed.settimeout(stage.wait_s)
    closed.connect((PUBLIC, PORT))
    closed.send(b"nobody is there")
    try:
        closed.recv(1)
    except OSError as error:
        facts["an error from the other side arrives"] = error.errno == errno.ECONNREFUSED
    listener.close()
    facts["queries and their answers are not tracked"] = not _are_tracked(stage)
    return facts


def _are_tracked(stage: Stage) -> bool:
    """Whether a query to the gateway, or its answer, becomes a tracked connection of the router."""
    assert stage.networks.router is not None and stage.attacker.namespace is not None
    router = stage.networks.router.namespace
    before = _tracked(router)
    with stage.lab.receive(router, GATEWAY, 53) as gateway, stage.lab.udp(stage.attacker.namespace) as ours:
        for sock in (gateway, ours):
            sock.settimeout(stage.wait_s)
        ours.connect((GATEWAY, 53))
        ours.send(b"query")
        try:
            _, asker = gateway.recvfrom(100)
            gateway.sendto(b"answer", asker)
            ours.recv(100)
        except OSError:  # on a stage on which something is wrong on purpose
            return True
        return _tracked(router) > before


def _tracked(namespace: int) -> int:
    with network_namespaces.entered(namespace):
        return int(network_namespaces.sysctl("netfilter/nf_conntrack_count"))


def _are_limited(stage: Stage, listener: socket.socket) -> bool:
    """Whether the neighbour is refused one connection at last, if each ends before the next one."""
    assert stage.neighbour.namespace is not None
    for number in range(MOST.new_connections + 100):
        with stage.lab.tcp(stage.neighbour.namespace) as ours:
            ours.settimeout(stage.wait_s)
            status = ours.connect_ex((PUBLIC, PORT))
            if status:
                return status == errno.ENETUNREACH and number >= MOST.new_connections
            theirs, _ = listener.accept()
            theirs.close()
            ours.recv(1)
    return False


async def talk_by_name(stage: Stage) -> dict[str, bool]:
    """What happens on a connection to what a name stands for, when that time is over, and when the rules change."""
    assert stage.attacker.namespace is not None
    facts: dict[str, bool] = {}
    lab, policy = stage.lab, stage.policy
    listener = lab.listen(lab.internet, PUBLIC, BY_NAME)
    ours, late = lab.tcp(stage.attacker.namespace), lab.tcp(stage.attacker.namespace)
    ours.settimeout(stage.wait_s)
    late.settimeout(stage.wait_s)
    await policy.open_name(NAME, [IPv4Address(PUBLIC)], 60)
    facts["what a name stands for is reached"] = ours.connect_ex((PUBLIC, BY_NAME)) == 0
    _forget(stage)
    facts["then it is not reached any more"] = late.connect_ex((PUBLIC, BY_NAME)) == errno.EHOSTUNREACH
    if facts["what a name stands for is reached"]:
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(stage.wait_s)
            facts["connections that there are go on"] = _sent(ours, b"question") and _received(theirs) == b"question"
            await policy.change(egress.parse([], most=1))
            facts["other rules end them at once"] = _sent(ours, b"one more") and _reset(ours)
            await policy.change(egress.parse(RULES, most=len(RULES)))
    return facts


async def talk_with_the_host(stage: Stage) -> dict[str, bool]:
    """What happens on a connection to a port of the host, to a listener of the router, and when the rules change."""
    assert stage.networks.router is not None
    assert stage.attacker.namespace is not None and stage.neighbour.namespace is not None
    router, facts = stage.networks.router, dict[str, bool]()
    listener = stage.lab.listen(router.namespace, GATEWAY, OF_THE_HOST)
    ours, theirs = stage.lab.tcp(stage.attacker.namespace), stage.lab.tcp(stage.neighbour.namespace)
    for sock in (listener, ours, theirs):
        sock.settimeout(stage.wait_s)
    before = router.count(ruleset.PROXIED)
    facts["a port of the host is reached"] = ours.connect_ex((GATEWAY, OF_THE_HOST)) == 0
    facts["this is counted"] = router.count(ruleset.PROXIED) == before + 1
    facts["others do not reach it"] = theirs.connect_ex((GATEWAY, OF_THE_HOST)) == errno.EHOSTUNREACH
    if facts["a port of the host is reached"]:
        with listener.accept()[0] as accepted:
            accepted.settimeout(stage.wait_s)
            facts["it is answered"] = _sent(accepted, b"answer") and _received(ours) == b"answer"
            await stage.policy.change(egress.parse([], most=1))
            facts["other rules end it at once"] = _sent(ours, b"one more") and _reset(ours)
            await stage.policy.change(egress.parse(RULES, most=len(RULES)))
    listener.close()
    return facts


def _forget(stage: Stage) -> None:
    """The time of what a name stands for is over."""
    assert stage.networks.router is not None
    (names,) = stage.policy._now.sets()
    with network_namespaces.entered(stage.networks.router.namespace):
        rules = NetlinkSocket.open(NETFILTER)
    with contextlib.closing(rules):
        rules.exchange(nfnetlink.batch(nfnetlink.delete(ruleset.TABLE, names, [nfnetlink.Element(PUBLIC)])))


def _sent(sock: socket.socket, data: bytes) -> bool:
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False


def _reset(sock: socket.socket) -> bool:
    try:
        sock.recv(1)
    except OSError as error:
        return error.errno == errno.ECONNRESET
    return False


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(100)
    except OSError:
        return b""
