"""Group K, 1 and 7: with the host's network, a function neither stands where clients look for the worker nor takes all ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sockd.client.cli.doctor.checks import packet_guard
from tests.abuse.attack import attack, files, in_zygote
from tests.support.cases import Happened, case
from tests.support.emulated import counts_sockets
from tests.support.private_worker import NEIGHBOUR, PrivateWorker

DEFAULT_PORT = 5000
ADDRESSES = ("127.0.0.1", "0.0.0.0", "127.0.0.2", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0")
MOST = 1024
MANY = 3000


def take_ports(event: Any) -> Any:
    """What bind says of each port at each address, over TCP and UDP, with all options that let ports be shared."""
    said = {}
    for port in event["ports"]:
        for host in event["addresses"]:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for options in ((), ("SO_REUSEADDR", "SO_REUSEPORT")):
                    with socket.socket(family, kind) as sock:
                        for option in options:
                            sock.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
                        if options and family == socket.AF_INET6 and host != "::ffff:127.0.0.1":
                            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if "." in host else 1)
                        name = f"{host} {port} {kind.name} {len(options)}"
                        said[name] = outcome(sock.bind, (host, port))  # type: ignore[name-defined]  # noqa: F821
    return said


@case(
    "K1",
    "bind the worker's port and 5000, on seven addresses, over TCP and UDP, sharing or not; from a handler and a Zygote",
    expect="EPERM, each time; port 0 is given",
)
def test_nothing_in_a_sandbox_binds_the_workers_ports(worker: PrivateWorker, happened: Happened) -> None:
    event = {"ports": [worker.daemon.port, DEFAULT_PORT], "addresses": ADDRESSES}
    for place, said in (
        ("handler", attack(worker, take_ports, event)),
        ("Zygote", in_zygote(worker, take_ports, event)),
    ):
        got = sorted(name for name, answer in said.items() if answer == "ok")
        happened(f"{place}: {len(said)} tries, {sorted(set(said.values()))}, bound: {got}")
        assert set(said.values()) == {"EPERM"}, said
    free = attack(worker, take_ports, {**event, "ports": [0]})
    assert set(free.values()) == {"ok"}, free


def misled(event: Any) -> Any:
    """What the kernel says of datagrams to a denied address: named, corked, connected to, and as the first stop of a route."""
    host, links = event
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def routed(sock: socket.socket, link: int) -> None:
        if family == socket.AF_INET6:  # a segment routing header (RFC 8754), and the link in IPV6_PKTINFO
            segments = bytes([0, 4, 4, 1, 1, 0, 0, 0]) + bytes(16) + socket.inet_pton(family, host)
            sock.setsockopt(socket.IPPROTO_IPV6, 57, segments)
            sock.sendmsg([b"x"], [(socket.IPPROTO_IPV6, 50, bytes(16) + link.to_bytes(4, "little"))], 0, ("::1", 80))
        else:  # a loose source route (RFC 791), for which Linux wants CAP_NET_RAW
            sock.setsockopt(socket.IPPROTO_IP, 4, bytes([131, 7, 4]) + socket.inet_aton(host) + bytes(1))
            sock.sendto(b"x", ("127.0.0.1", 80))

    said = {}
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        said["named"] = outcome(sock.sendto, b"x", (host, 80))  # type: ignore[name-defined]  # noqa: F821
        said["corked"] = outcome(sock.sendto, b"x", socket.MSG_MORE, (host, 80))  # type: ignore[name-defined]  # noqa: F821
        said["connected"] = outcome(sock.connect, (host, 80))  # type: ignore[name-defined]  # noqa: F821
    for link in links:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            said[f"routed by link {link}"] = outcome(routed, sock, link)  # type: ignore[name-defined]  # noqa: F821
    return said


@case(
    "K23",
    "datagrams to link-local addresses and metadata services: named, corked, connected, and by source routes of IPv4 and IPv6",
    expect="EPERM, or there is no route",
)
@pytest.mark.parametrize("host", ["169.254.169.254", "fe80::1", "fd00:ec2::254"])
def test_no_way_leads_to_the_metadata_service(worker: PrivateWorker, happened: Happened, host: str) -> None:
    links = [number for number, name in socket.if_nameindex() if name != "lo"] or [1]
    said = attack(worker, misled, [host, links])
    happened(", ".join(f"{kind}: {answer}" for kind, answer in said.items()))
    assert {answer for kind, answer in said.items() if not kind.startswith("routed")} <= {"EPERM"}, said
    if (guard := packet_guard()).ok is None:
        pytest.skip(f"source routes need Linux 6.15: {guard.found}")
    assert set(said.values()) <= {"EPERM", "ENETUNREACH", "EADDRNOTAVAIL", "EINVAL"}, said


def autobind(event: Any) -> Any:
    """Listeners on ports that nobody named: unbound, or bound to an address whose port is to come later."""
    got = []
    for family, host in event["addresses"]:
        for _ in range(event["count"]):
            sock = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET)
            if family == 6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if host:
                sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
                sock.bind((host, 0))
            sock.listen()
            got.append(sock.getsockname()[1])
            sock.close()
    return got


@case("K1", "listen without bind 4 000 times, until the port comes by chance", expect="never the worker's")
def test_a_port_that_comes_by_chance_is_never_the_workers(worker: PrivateWorker, happened: Happened) -> None:
    addresses = [[4, ""], [6, ""], [4, "127.0.0.1"], [6, "::1"]]
    got = attack(worker, autobind, {"addresses": addresses, "count": 1000})
    happened(f"{len(got)} listeners on {len(set(got))} ports")
    assert worker.daemon.port not in got and DEFAULT_PORT not in got


@case("K1", "ask the worker at ::1, where `localhost` may lead", expect="the worker answers; or nobody, without IPv6")
def test_both_loopbacks_are_the_workers(worker: PrivateWorker, happened: Happened) -> None:
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, worker.daemon.port, timeout=10)
        try:
            connection.request("POST", f"/run/{NEIGHBOUR}", json.dumps(host))
            answer = connection.getresponse().read()
        except OSError as error:
            assert not has_ipv6(), error
            continue
        finally:
            connection.close()
        happened(f"{host}: {answer.decode()}")
        assert json.loads(answer) == host
    assert worker.daemon.url == f"http://127.0.0.1:{worker.daemon.port}"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def hoard(event: Any) -> Any:
    """Bind ephemeral ports in many processes, as no descriptor limit is a sandbox's, until it is refused; keep them."""
    import resource

    reading, writing = os.pipe()  # type: ignore[name-defined]  # noqa: F821
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    total, refused = 0, ""
    while total < event and not refused:
        if os.fork() == 0:  # type: ignore[name-defined]  # noqa: F821
            kept: list[Any] = []
            said = ""
            try:
                for _ in range(most - 64):
                    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    kept[-1].bind(("127.0.0.1", 0))
            except OSError as error:
                said = name_of(error.errno)  # type: ignore[name-defined]  # noqa: F821
            os.write(writing, json.dumps([len(kept), said]).encode())  # type: ignore[name-defined]  # noqa: F821
            signal.pause()  # type: ignore[name-defined]  # noqa: F821
        count, refused = json.loads(os.read(reading, 100))  # type: ignore[name-defined]  # noqa: F821
        total += count
    return [total, refused]


@pytest.fixture
def sockets_left(worker: PrivateWorker) -> Iterator[None]:
    """All sockets of functions are gone after the case."""
    yield
    worker.settle()


@counts_sockets
@case(
    "K7",
    f"bind {MANY} ephemeral ports from a sandbox, in processes of its own; again in a second one; then leave both paused",
    expect=f"EMFILE at {MOST}; the host and other functions bind ports all the while; all come back",
)
def test_a_sandbox_has_so_many_sockets(worker: PrivateWorker, happened: Happened, sockets_left: None) -> None:
    worker.deploy("hoards", files(hoard), memory_mb=256, timeout_s=30, concurrency=2)
    answers: list[Any] = []

    def call() -> None:  # in a new sandbox, also where the other one's answer has come already
        answers.append(worker.invoke("hoards", MANY, x_sockd_fresh="1").json)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    happened(f"bound: {answers}")
    assert [refused for _, refused in answers] == ["EMFILE", "EMFILE"], answers
    assert all(MOST * 0.9 < bound <= MOST for bound, _ in answers), answers
    free = attack(worker, take_ports, {"ports": [0], "addresses": ["127.0.0.1", "::"]})
    assert set(free.values()) == {"ok"}, free
    assert worker.call(NEIGHBOUR, 1) == 1


def hoard_accepted(event: Any) -> Any:
    """Keep the accepted ends of connections with oneself and close the rest: of each port neither client nor listener is left."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    kept: list[Any] = []
    try:
        while len(kept) < event:
            with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
                kept.append(listener.accept()[0])
    except OSError as error:
        return [len(kept), name_of(error.errno)]  # type: ignore[name-defined]  # noqa: F821
    return [len(kept), "ok"]


@counts_sockets
@case("K7", f"keep {MANY} accepted connections, without their listeners and clients", expect=f"EMFILE at {MOST}")
def test_accepted_connections_are_sockets_too(worker: PrivateWorker, happened: Happened, sockets_left: None) -> None:
    kept, refused = attack(worker, hoard_accepted, MANY, open_files=4096, memory_mb=256)
    happened(f"{kept} kept, {refused}")
    assert refused == "EMFILE" and MOST * 0.9 < kept <= MOST


@counts_sockets
@case("K7", "the same with sockets = 8, and from a package that a Zygote imports", expect="EMFILE at 8, and at 128")
def test_the_limit_is_the_functions_and_zygotes_have_one_too(worker: PrivateWorker, happened: Happened) -> None:
    def open_all(event: Any) -> Any:
        kept: list[Any] = []
        try:
            while len(kept) < 500:
                kept.append(socket.socket())
        except OSError as error:
            return [len(kept), name_of(error.errno)]  # type: ignore[name-defined]  # noqa: F821
        return [len(kept), "ok"]

    handler, zygote = attack(worker, open_all, sockets=8), in_zygote(worker, open_all)
    happened(f"handler: {handler}; Zygote: {zygote}")
    assert handler == [8, "EMFILE"]
    assert zygote == [128, "EMFILE"]
