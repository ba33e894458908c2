"""Where functions may connect to: the rules, and that a connection cannot get around them."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from sockd.base.config import Config
from sockd_initscripts.region import Region
from sockd_initscripts.rpc import DENIED, ConnectionPool, Dialer, EndpointPolicy, RpcFailed
from sockd_initscripts.rpc.dialing import policy
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.peer import Request, peer

LINK_LOCAL = ["169.254.169.254", "169.254.0.1", "::ffff:169.254.169.254", "fe80::1", "fe80::1%lo", "fd00:ec2::254"]
METADATA = ["100.100.100.200", "168.63.129.16", "169.254.170.2", "192.0.0.192", "fd00:ec2::23"]
CARRYING = [
    *("64:ff9b::169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::6464:64c8", "2002:a9fe:a9fe::", "2002:a83f:8110::1"),
    *("::ffff:0:169.254.169.254", "::169.254.169.254", "::a83f:8110", "::ffff:100.100.100.200"),
    *(
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
        "64:ff9b:1:7:64:6464:c800:0",
    ),
    *("64:ff9b:1:a9:fe:a9fe::", "2001:0:a9fe:a9fe::1", "2001:0:7f00:1:0:0:5601:5601", "2001:0:7f00:1:0:0:9b9b:9b37"),
    *("2001:db8::5efe:169.254.169.254", "fd12::200:5efe:a83f:8110", "2001:db8::200:5efe:100.100.100.200"),
]
"""Addresses of IPv6 that a translator or a tunnel takes for one of those: NAT64, 6to4, SIIT, compatible, Teredo, ISATAP."""
METADATA_NAMES = ["metadata.google.internal", "metadata.goog", "instance-data", "metadata.tencentyun.com"]
MULTICAST = ["224.0.0.1", "239.1.2.3", "ff02::1"]


def own_addresses() -> list[str]:
    """Ways to say this host, among them the address that it has towards others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            outward = [probe.getsockname()[0]]
        except OSError:  # no network but loopback
            outward = []
    mapped = [f"::ffff:{address}" for address in outward]
    return ["127.0.0.1", "127.9.8.7", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", *outward, *mapped]


@pytest.mark.parametrize("ip", LINK_LOCAL + METADATA + CARRYING + MULTICAST)
@pytest.mark.parametrize("allowed", [None, ["0.0.0.0/0", "::/0", "169.254.169.254", "168.63.129.16", "name"]])
def test_some_addresses_are_nobodys(ip: str, allowed: list[str] | None) -> None:
    assert not EndpointPolicy(allowed).allows("name", ip, 80)


def test_what_is_denied_besides_is_the_operators_choice() -> None:
    rules = EndpointPolicy(None, denied_endpoints=["10.0.0.0/8", "*.internal", "secret.example:80"])
    assert rules.allows("name", "168.63.129.16", 80) and not rules.allows("name", "64:ff9b::10.1.2.3", 80)
    for host, port, is_denied in (
        ("a.internal", 1, True),
        ("secret.example", 80, True),
        ("secret.example", 81, False),
        ("metadata.google.internal", 80, True),
    ):
        assert rules.allows(host, "192.0.2.7", port) is not is_denied
        assert _is_asked_for(rules, host, port) is not is_denied
    for unreachable in ("169.254.169.254", "2002:a9fe:a9fe::", "fe80::1"):
        assert not rules.allows("name", unreachable, 80)
    assert tuple(Config().initscripts.denied) == DENIED


@pytest.mark.parametrize("name", METADATA_NAMES)
def test_names_of_metadata_services_are_not_resolved(name: str) -> None:
    for allowed in (None, [name], ["*.internal", "0.0.0.0/0"]):
        assert not _is_asked_for(EndpointPolicy(allowed), name, 80)


@pytest.mark.parametrize("name", ["secret-bytes.attacker.example", "2852039166", "0x7f.1", "localhost"])
def test_networks_have_no_name_resolved(name: str) -> None:
    """The query itself would carry data to the server that answers for the name."""
    assert not _is_asked_for(EndpointPolicy(["10.0.0.0/8", "::/0", "good.example"]), name, 80)
    assert _is_asked_for(EndpointPolicy(["10.0.0.0/8", "good.example"]), "good.example", 80)
    assert _is_asked_for(EndpointPolicy(["10.0.0.0/8"]), "10.1.2.3", 80)


def _is_asked_for(rules: EndpointPolicy, host: str, port: int) -> bool:
    """Whether a connection by this name is begun, which resolves it."""
    try:
        rules.check_name(host, port)
    except RpcFailed:
        return False
    return True


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.1.2.3", "192.0.2.7", "::1", "2001:db8::1", "::ffff:10.0.0.1"])
def test_by_default_all_others_are_everybodys(ip: str) -> None:
    assert EndpointPolicy().allows("name", ip, 80)
    assert not EndpointPolicy([]).allows("name", ip, 80)


@pytest.mark.parametrize("ip", own_addresses())
def test_the_daemons_ports_are_denied_on_each_address_of_this_host(ip: str) -> None:
    for allowed in (None, ["0.0.0.0/0", "::/0", "name"]):
        policy = EndpointPolicy(allowed, denied_ports=[8080])
        assert not policy.allows("name", ip, 8080)
        assert policy.allows("name", ip, 8081)


def test_others_may_have_ports_of_the_same_number() -> None:
    assert EndpointPolicy(denied_ports=[443]).allows("name", "198.51.100.7", 443)


@pytest.mark.parametrize(
    ("entry", "host", "ip", "port", "expected"),
    [
        ("s3.example", "s3.example", "10.0.0.1", 80, True),
        ("S3.Example.", "s3.example", "10.0.0.1", 80, True),
        ("s3.example", "x.s3.example", "10.0.0.1", 80, False),
        ("s3.example:443", "s3.example", "10.0.0.1", 443, True),
        ("s3.example:443", "s3.example", "10.0.0.1", 80, False),
        ("*.example", "s3.example", "10.0.0.1", 80, True),
        ("*.example", "a.b.example", "10.0.0.1", 80, True),
        ("*.example", "example", "10.0.0.1", 80, False),
        ("*.example", "badexample", "10.0.0.1", 80, False),
        ("*.example:80", "s3.example", "10.0.0.1", 81, False),
        ("10.0.0.0/8", "whatever", "10.200.0.1", 5, True),
        ("10.0.0.0/8", "whatever", "11.0.0.1", 5, False),
        ("10.0.0.0/8:9000", "whatever", "10.0.0.1", 9000, True),
        ("10.0.0.0/8:9000", "whatever", "10.0.0.1", 9001, False),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1", 1, True),
        ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.1", 1, True),
        ("[::1]:80", "::1", "::1", 80, True),
        ("[::1]:80", "::1", "::1", 81, False),
        ("2001:db8::/32", "whatever", "2001:db8::7", 1, True),
        ("[2001:db8::/32]:7", "whatever", "2001:db8::7", 8, False),
    ],
)
def test_entries(entry: str, host: str, ip: str, port: int, expected: bool) -> None:
    assert EndpointPolicy([entry]).allows(host, ip, port) is expected


@pytest.mark.parametrize("entry", ["", "http://x", "a b", "x:99999", "x:y", "10.0.0.0/99", "*", "*.*.x", "a@b", "x/y"])
def test_entries_that_are_none(entry: str) -> None:
    with pytest.raises(ValueError):
        EndpointPolicy([entry])


@pytest.mark.anyio
@pytest.mark.parametrize(
    "address",
    ["http://[::ffff:169.254.169.254]", "https://169.254.169.254", "tcp://[fe80::1]:80", "grpc://224.0.0.1:1"],
)
async def test_what_no_name_hides_is_refused_at_once(dialer: Dialer, address: str) -> None:
    with pytest.raises(RpcFailed) as failure:
        dialer.connect(address)
    assert (failure.value.reason, failure.value.errno) == ("denied", errno.EACCES)


@pytest.mark.anyio
@pytest.mark.parametrize("allowed", [[], ["other.example"], ["localhost:1"]])
async def test_a_name_that_no_rule_could_allow_is_refused_at_once(pool: ConnectionPool, allowed: list[str]) -> None:
    dialer = Dialer({"AWS_ENDPOINT_URL": "http://localhost:9000"}, EndpointPolicy(allowed), pool)
    for address in ("http://localhost:9000", "tcp://localhost:9000", "grpc://localhost:9000", "s3:", "sqs:"):
        with pytest.raises(RpcFailed) as failure:
            dialer.connect(address)
        assert failure.value.reason == "denied"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "address",
    [
        *"s3 s3:/ s3://bucket http:// http://a:b@c http://a/b http://a:0 http://a:65536 tcp://a ftp://a:1".split(),
        *"http://[::1 http://[::g] http://ä grpc://a http://a?b HTTP://a".split(),
        *("", "http://a b", "http://a\r\n"),
    ],
)
async def test_addresses_that_are_none(dialer: Dialer, address: str) -> None:
    with pytest.raises(RpcFailed) as failure:
        dialer.connect(address)
    assert (failure.value.reason, failure.value.errno) == ("malformed", errno.EINVAL)


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["http", "tcp", "grpc"])
async def test_a_name_for_a_denied_address_is_found_out(pool: ConnectionPool, region: Region, scheme: str) -> None:
    async with peer(_welcome) as server:
        methods = {"http": "GET /", "tcp": "line", "grpc": "/a/b"}
        for policy in (
            EndpointPolicy(denied_ports=[server.port]),
            EndpointPolicy(denied_endpoints=["127.0.0.0/8", "::1"]),
        ):
            connection = Dialer({}, policy, pool).connect(f"{scheme}://localhost:{server.port}")
            async with failing("denied", errno.EACCES):
                await ask(connection, region, methods[scheme])
            connection.close()
        assert server.connections == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])  # uvloop's methods cannot be replaced
async def test_the_address_that_was_judged_is_the_one_connected_to(
    pool: ConnectionPool, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name server of the attacker's: a harmless address first, this host afterwards. Asked once, it gains nothing.
    answers = iter([["127.0.0.2", "127.0.0.1"], ["127.0.0.1"]])

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in next(answers)]

    async with peer(_welcome, host="127.0.0.2") as server:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        policy = EndpointPolicy(["rebound.example"], denied_endpoints=["127.0.0.1"])
        connection = Dialer({}, policy, pool).connect(f"http://rebound.example:{server.port}")
        assert content(await ask(connection, region, "GET /")) == b"welcome"
        assert server.requests[0].headers["host"] == f"rebound.example:{server.port}"


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["[::1]", "127.77.0.1"])
async def test_addresses_of_loopback_beyond_the_usual_one(dialer: Dialer, region: Region, host: str) -> None:
    async with peer(_welcome, host=host.strip("[]")) as server:
        connection = dialer.connect(f"http://{host}:{server.port}")
        assert content(await ask(connection, region, "GET /")) == b"welcome"
        assert server.requests[0].headers["host"] == f"{host}:{server.port}"


def test_only_what_was_allowed_is_remembered_and_of_the_daemons_ports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = EndpointPolicy(["10.0.0.0/8"], denied_ports=[8080])
    for _ in range(2):
        assert rules.allows("a", "10.0.0.1", 80) and rules.allows("a", "10.0.0.1", 8080)
        assert not rules.allows("a", "11.0.0.1", 80)
    monkeypatch.setattr(policy, "_is_local", lambda _: True)  # the host was given that address
    assert rules.allows("a", "10.0.0.1", 80) and not rules.allows("a", "10.0.0.1", 8080)


async def _welcome(request: Request) -> None:
    request.answer(b"welcome")


def test_the_script_of_a_private_network_reaches_what_the_network_reaches() -> None:
    rules = EndpointPolicy(private=["10.1.0.0/16:5432-5433", "*.example.com:443", "internet:80-443"])
    for host, ip, port, is_allowed in (
        ("10.1.2.3", "10.1.2.3", 5432, True),
        ("10.1.2.3", "10.1.2.3", 5434, False),
        ("10.2.2.3", "10.2.2.3", 5432, False),
        ("api.example.com", "192.168.1.1", 443, True),  # a name that a rule names may be anywhere but on this host
        ("api.example.com", "127.0.0.1", 443, False),
        ("api.example.com", "0.0.0.0", 443, False),
        ("other.org", "9.9.9.9", 443, True),
        ("other.org", "9.9.9.9", 444, False),
        ("other.org", "192.168.1.1", 443, False),
        ("other.org", "100.64.0.1", 443, False),
        ("other.org", "169.254.169.254", 443, False),
        ("other.org", "2620:fe::fe", 443, False),
        *(("internet", own, 80, False) for own in own_addresses()),
    ):
        assert rules.allows(host, ip, port) == is_allowed, (host, ip, port)
    rules.check_name("other.org", 443)
    with pytest.raises(RpcFailed, match="egress"):
        rules.check_name("other.org", 8080)
    with pytest.raises(RpcFailed, match="egress"):
        EndpointPolicy(private=["10.0.0.0/8"]).check_name("other.org", 443)
    both = EndpointPolicy(["s3.example.com"], private=["*.example.com"])
    both.check_name("s3.example.com", 443)
    for name in ("api.example.com", "s3.example.org"):
        with pytest.raises(RpcFailed, match="not"):
            both.check_name(name, 443)
    assert not EndpointPolicy(private=[]).allows("9.9.9.9", "9.9.9.9", 443)


def test_the_gateway_stands_for_ports_of_the_host_that_rules_name() -> None:
    rules = EndpointPolicy(private=["host:5432", "host:80"], host_ports=[5432, 6000], denied_ports=[6000])
    for host in ("169.254.1.1", "host.sockd.internal"):
        rules.check_name(host, 5432)
        assert rules.allows(host, "127.0.0.1", 5432) and not rules.allows(host, "169.254.1.1", 5432)
        for port in (80, 6000, 5433):  # not open by the worker; its own; not named
            with pytest.raises(RpcFailed):
                rules.check_name(host, port)
            assert not rules.allows(host, "127.0.0.1", port)
    assert not rules.allows("127.0.0.1", "127.0.0.1", 5432), "which is the sandbox's own loopback"
    assert not rules.allows("host", "127.0.0.1", 5432)
    allowed = EndpointPolicy(["169.254.1.1:5432"], private=["host:5432"], host_ports=[5432])
    assert allowed.allows("169.254.1.1", "127.0.0.1", 5432)
    assert not EndpointPolicy([], private=["host:5432"], host_ports=[5432]).allows("169.254.1.1", "127.0.0.1", 5432)
    assert not EndpointPolicy(host_ports=[5432]).allows("169.254.1.1", "169.254.1.1", 5432)


@pytest.mark.anyio
async def test_a_script_is_connected_to_the_host_by_its_gateway(pool: ConnectionPool, region: Region) -> None:
    async with peer(_welcome) as server:
        rules = EndpointPolicy(private=[f"host:{server.port}"], host_ports=[server.port])
        for _ in range(2):  # the second time over a kept connection
            connection = Dialer({}, rules, pool).connect(f"http://host.sockd.internal:{server.port}")
            assert content(await ask(connection, region, "GET /")) == b"welcome"
            connection.close()
        assert server.connections == 1


def test_internet_is_a_name_like_others_where_no_network_is_private() -> None:
    assert not EndpointPolicy(["internet"]).allows("other.org", "9.9.9.9", 443)
