"""Group N through functions: what a sandbox sends from its private network, by every protocol that it can name, arrives only
where its rules say so; whatever is used again, and whenever the rules change.

The worker is on the host of a lab, which sees each packet on the internet's link and each that the host takes in.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network

import pytest

from sockd.isolation.networks.ruleset import GATEWAY
from tests.daemon.running import RunningDaemon
from tests.support.cases import Happened, case
from tests.support.networks.network_lab import (
    CLOUD_METADATA,
    HOST,
    METADATA,
    OTHER_PORT,
    OTHER_PUBLIC,
    PORT,
    PRIVATE,
    PUBLIC,
    ROUTER,
    UNUSED_RANGE,
    WAIT_S,
    Lab,
    frames_of,
    lab,
)
from tests.support.private_worker import command_without

pytestmark = pytest.mark.root

ATTEMPTS = """
import errno, os, socket, struct, time
MARK = b"mark" * 5
def kinds(host, port, spoofed):
    def tcp():
        with socket.socket() as sock:
            sock.settimeout(5); sock.connect((host, port)); sock.sendall(MARK)
    def fast_open():
        with socket.socket() as sock:
            sock.settimeout(5); sock.sendto(MARK, 0x20000000, (host, port))
    def udp(data=MARK, source=None, option=None):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            if option: sock.setsockopt(socket.IPPROTO_IP, option, 1)
            if source: sock.bind((source, 0))
            sock.connect((host, port)); sock.send(data)
            try:
                sock.settimeout(0.3); sock.recv(1)
            except TimeoutError:
                pass
    def fragments():
        udp(MARK * 1000)
    def dns():
        query = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\\x04mark\\x07example\\0" + struct.pack("!HH", 1, 1)
        udp(query)
    def spoofed_bind():
        udp(source=spoofed)
    def spoofed_free_bind():
        udp(source=spoofed, option=15)
    def spoofed_transparent():
        udp(source=spoofed, option=19)
    def spoofed_by_message():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            info = struct.pack("=i4s4s", 0, socket.inet_aton(spoofed), bytes(4))
            sock.sendmsg([MARK], [(socket.IPPROTO_IP, 8, info)], 0, (host, port))
    def icmp_ping():
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
    def icmp_raw():
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    def raw_ip():
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
    def raw_frames():
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
    def sctp():
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).close()
    def ipv6(kind=socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET6, kind) as sock:
            sock.settimeout(5); sock.connect(("2001:db8::1", port)); sock.send(MARK)
    def ipv6_udp():
        ipv6(socket.SOCK_DGRAM)
    def ipv4_in_ipv6():
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.settimeout(5); sock.connect(("::ffff:" + host, port)); sock.sendall(MARK)
    def multicast():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(MARK, ("224.0.0.251", port))
    def broadcast():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1); sock.sendto(MARK, ("255.255.255.255", port))
    return [each for each in locals().values() if callable(each)]
def f(event):
    said = {}
    for host, port in event["targets"]:
        for attempt in kinds(host, port, event["spoofed"]):
            began = time.monotonic()
            try:
                attempt(); what = "ok"
            except OSError as error:
                what = errno.errorcode.get(error.errno, type(error).__name__)
            said[f"{attempt.__name__} {host}:{port}"] = what, time.monotonic() - began
    return said
"""
ADDRESS = """
import fcntl, socket, struct
def f(event):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return socket.inet_ntoa(fcntl.ioctl(sock, 0x8915, struct.pack("256s", b"eth0"))[20:24])
"""
CONNECTS = """
import errno, socket
def f(event):
    with socket.socket() as sock:
        sock.settimeout(5)
        return errno.errorcode.get(sock.connect_ex(tuple(event)), "ok")
"""
KEEPS = """
import errno, socket
kept = []
def f(event):
    try:
        if event["new"]:
            kept.append(socket.socket()); kept[-1].settimeout(0.5); kept[-1].connect(tuple(event["to"]))
        kept[-1].sendall(b"more")
        return kept[-1].recv(1).decode()
    except TimeoutError:
        return "nobody answers"
    except OSError as error:
        return errno.errorcode[error.errno]
"""
TALKS = """
import errno, socket
def f(event):
    try:
        with socket.create_connection(tuple(event), timeout=20) as sock:
            sock.sendall(b"question")
            return sock.recv(100).decode()
    except OSError as error:
        return errno.errorcode[error.errno]
"""
CALLS = """
import errno, http.client, json
kept = []
def f(event):
    host, paths = event
    said = []
    try:
        if not kept:
            kept.append(http.client.HTTPConnection(host, 80, timeout=20))
        for path in paths:
            kept[0].request("POST" if path.startswith("/run") else "GET", path, "7")
            answer = kept[0].getresponse()
            said.append([answer.status, answer.read().decode()])
    except OSError as error:
        return errno.errorcode[error.errno]
    return said
"""
AT_ONCE_S = 1.0
DATABASE = 5432
RANGE = IPv4Network("100.64.0.0/10")
UPLINKS = IPv4Network("198.18.0.0/15")
OF_THE_LINK = b"\xff\x02"
"""Multicast addresses (RFC 4291) that no router forwards: kernels announce the link's own hosts there."""


@pytest.fixture(scope="module")
def world() -> Iterator[Lab]:
    with lab() as world:
        for host in (PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA, CLOUD_METADATA):
            for port in (PORT, OTHER_PORT):
                world.listen(world.internet, host, port)
        world.listen(world.internet, PRIVATE, DATABASE)
        world.listen(world.host, "0.0.0.0", PORT)
        yield world


@pytest.fixture(scope="module")
def daemon(
    request: pytest.FixtureRequest, world: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(
        tmp_path_factory.mktemp("private") / "state",
        f"[network]\nhost_ports = [{DATABASE}]\n",
        command=command_without(request.config.getoption("broken", default="")),
    )
    yield daemon
    daemon.close()


class Seen:
    """Where packets of sandboxes arrive, from now on."""

    def __init__(self, world: Lab) -> None:
        self._link = world.capture(world.internet, "lan0")
        kinds = (socket.IPPROTO_UDP, socket.IPPROTO_TCP, socket.IPPROTO_ICMP)
        self._own = [world.opened(world.host, socket.AF_INET, socket.SOCK_RAW, kind) for kind in kinds]

    def close(self) -> None:
        for sock in (self._link, *self._own):
            sock.close()

    def on_the_internet(self) -> set[tuple[str, int]]:
        """Where those went that reached the internet's link; its own packets are not among them."""
        found = set()
        for frame in frames_of(self._link):
            kind, packet = frame[12:14], frame[14:]
            if kind == b"\x86\xdd" and not packet[24:].startswith(OF_THE_LINK):
                found.add(("IPv6", 0))
            if kind == b"\x08\x00" and socket.inet_ntoa(packet[16:20]) != HOST:
                fragment = struct.unpack_from("!H", packet, 6)[0] & 0x1FFF
                port = struct.unpack_from("!H", packet, 22)[0] if packet[9] in (6, 17) and not fragment else 0
                found.add((socket.inet_ntoa(packet[16:20]), port))
        return found

    def by_the_host(self) -> list[str]:
        """Sources of those that the host took in for itself."""
        sources = [socket.inet_ntoa(packet[12:16]) for sock in self._own for packet in frames_of(sock)]
        return [each for each in sources if IPv4Address(each) in RANGE or IPv4Address(each) in UPLINKS]


@case(
    "N2",
    "a function sends by 19 ways (TCP, UDP, ICMP, IPv6, DNS, fragments, spoofed sources, raw frames, ...) to another sandbox, "
    "every address of the host, the worker, metadata services, and ports that its rules do not name",
    expect="0 packets pass, each connection is refused at once; what is allowed passes",
)
def test_a_function_sends_only_where_its_rules_say(daemon: RunningDaemon, world: Lab, happened: Happened) -> None:
    daemon.deploy("neighbour", ADDRESS, network="private")
    neighbour = daemon.call("neighbour")
    daemon.deploy("attacks", ATTEMPTS, network="private", egress=[f"{PUBLIC}:{PORT}"], timeout_s=120)
    with contextlib.closing(Seen(world)) as seen:
        allowed = (PUBLIC, PORT)
        forbidden = [
            *(
                (neighbour, PORT),
                (HOST, PORT),
                (HOST, daemon.port),
                (ROUTER, PORT),
                ("198.18.0.1", PORT),
                ("169.254.1.1", PORT),
            ),
            *((METADATA, 80), (METADATA, PORT), (CLOUD_METADATA, PORT), (UNUSED_RANGE, PORT), (PRIVATE, PORT)),
            *((PUBLIC, OTHER_PORT), (OTHER_PUBLIC, PORT), (PUBLIC, 53), (OTHER_PUBLIC, 53)),
        ]
        said = daemon.call("attacks", {"targets": forbidden, "spoofed": neighbour})
        on_link, by_host = seen.on_the_internet(), seen.by_the_host()
        passed = sorted(
            name for name, (what, _) in said.items() if what == "ok" and name.split()[0] in ("tcp", "ipv4_in_ipv6")
        )
        slow = {name: seconds for name, (_, seconds) in said.items() if seconds > AT_ONCE_S}
        happened(
            f"{len(said)} attempts, arrived {sorted(on_link)}, at the host {by_host}, connected {passed}, slow {slow}"
        )
        assert not on_link and not by_host and not passed and not slow, said
        said = daemon.call("attacks", {"targets": [allowed], "spoofed": neighbour})
        assert seen.on_the_internet() == {allowed, (PUBLIC, 0)}, "0: fragments behind the first"
        ok = {name.split()[0] for name, (what, _) in said.items() if what == "ok"}
        assert {"tcp", "ipv4_in_ipv6"} <= ok, said


@case(
    "N7",
    "a function with the rule host:5432, and one without it, connect to a database on the host's loopback",
    expect="the first one is answered, the other one refused at once",
)
def test_a_function_reaches_the_port_of_the_host_that_its_rules_name(
    daemon: RunningDaemon, world: Lab, happened: Happened
) -> None:
    daemon.deploy("with", TALKS, network="private", egress=[f"host:{DATABASE}"])
    daemon.deploy("without", TALKS, network="private")
    with world.listen(world.host, "127.0.0.1", DATABASE) as database, ThreadPoolExecutor(1) as pool:
        reported = pool.submit(daemon.call, "with", [GATEWAY, DATABASE])
        connection, _ = database.accept()
        with connection:
            connection.settimeout(WAIT_S)
            assert connection.recv(100) == b"question"
            connection.sendall(b"answer")
        assert reported.result() == "answer"
    refused = daemon.call("without", [GATEWAY, DATABASE])
    counted = daemon.status()["networks"]["host_connections"]
    happened(f"with the rule: answered; without: {refused}; {counted} counted")
    assert (refused, counted) == ("EHOSTUNREACH", 1)
    assert daemon.call("with", [HOST, DATABASE]) == "EHOSTUNREACH"


@case(
    "N8",
    "a function with the rule function:callee calls it, another function, pages of the worker; and again when the rule is gone",
    expect="the callee answers; else 403 and 404; afterwards nothing is reached, on the open connection neither",
)
def test_a_function_calls_the_function_that_its_rules_name(daemon: RunningDaemon, happened: Happened) -> None:
    for name in ("callee", "other"):
        daemon.deploy(name, f"def f(event): return ['{name}', event]")
    daemon.deploy("closed", "def f(event): return event", run="keys")
    daemon.deploy("caller", CALLS, network="private", egress=["function:callee", "function:closed"])
    daemon.deploy("stranger", CALLS, network="private")
    paths = ["/run/callee", "/run/other", "/run/closed", "/status", "/healthz", "/2015-03-31/functions/"]
    said = daemon.call("caller", [GATEWAY, paths])
    strangers = daemon.call("stranger", [GATEWAY, paths[:1]])
    happened(f"caller: {said}; stranger: {strangers}")
    assert said[:1] == [[200, '["callee",7]']]
    assert [status for status, _ in said[1:]] == [403, 401, 404, 404, 404], said
    assert "function:other" in said[1][1]
    assert strangers == "EHOSTUNREACH"
    assert daemon.manage("PATCH", "/functions/caller/settings", b'{"egress": []}').status == 200
    assert daemon.call("caller", [GATEWAY, paths[:1]]) in ("EHOSTUNREACH", "ECONNRESET")


@case(
    "N3",
    "sandboxes of a function with rules and of one without any in turns, from the same Zygotes, spares and idle ones",
    expect="the rules of one never serve the other, nor does an address come twice",
)
def test_rules_are_never_another_functions(daemon: RunningDaemon, happened: Happened) -> None:
    rounds = 12
    for reused in (True, False):
        daemon.deploy("may", CONNECTS, network="private", egress=[f"{PUBLIC}:{PORT}"], reuse_sandbox=reused)
        daemon.deploy("may-not", CONNECTS, network="private", egress=[], reuse_sandbox=reused)
        for _ in range(rounds):
            assert daemon.call("may", [PUBLIC, PORT]) == "ok"
            assert daemon.call("may-not", [PUBLIC, PORT]) == "EHOSTUNREACH"
    daemon.deploy("where", ADDRESS, network="private", reuse_sandbox=False)
    addresses = [daemon.call("where") for _ in range(rounds)]
    happened(f"{len(set(addresses))} addresses of {rounds} sandboxes")
    assert len(set(addresses)) == rounds
    daemon.remove("may")
    daemon.deploy("may", CONNECTS, network="private", egress=[])
    assert daemon.call("may", [PUBLIC, PORT]) == "EHOSTUNREACH", "a function of the same name has its own"


@case(
    "N4",
    "change the rules of a function whose sandbox has a connection",
    expect="the same sandbox is refused at once, its connection is reset, no version is made; allowed again, it connects",
)
def test_changed_rules_hold_for_sandboxes_that_run(daemon: RunningDaemon, happened: Happened) -> None:
    def change(*rules: str) -> int:
        answer = daemon.manage("PATCH", "/functions/keeps/settings", json.dumps({"egress": rules}))
        assert answer.status == 200, answer
        version: int = answer.json["version_number"]
        return version

    old, to = daemon.deploy("keeps", KEEPS, network="private", egress=[f"10.0.0.0/8:{DATABASE}"]), (PRIVATE, DATABASE)
    opened = daemon.run("keeps", {"new": True, "to": to})
    assert opened.json == daemon.call("keeps", {"new": False}) == "nobody answers", "it is connected"
    assert change() == old["version_number"]
    cut, refused = daemon.run("keeps", {"new": False}), daemon.run("keeps", {"new": True, "to": to})
    assert change(f"10.1.0.0/16:{DATABASE}") == old["version_number"]
    again = daemon.run("keeps", {"new": True, "to": to})
    happened(f"the old connection {cut.json}, a new one {refused.json}, allowed again {again.json}")
    assert (cut.json, refused.json, again.json) == ("ECONNRESET", "EHOSTUNREACH", "nobody answers")
    sandboxes = {each.headers["x-sockd-sandbox"] for each in (opened, cut, refused, again)}
    assert len(sandboxes) == 1
