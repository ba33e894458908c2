"""Functions with private networks: whom they reach, where they are forked from, and what is left of them.

The worker runs on the host of a lab (`network_lab`), whose internet has every address that a function could want.
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sockd.linux.network import network_namespaces
from tests.daemon.prefetching import READY
from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots.snapshotted import deploy, origin
from tests.daemon.test_runtime_api import archive
from tests.initscripts.guests import module
from tests.support.networks.network_lab import HOST, METADATA, OTHER_PORT, PORT, PRIVATE, PUBLIC, Lab, lab
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import at_once

pytestmark = pytest.mark.root

REFUSED = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNREFUSED, errno.EACCES}
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\nimport os\nPID = os.getpid()\n"
CONNECT = """
import socket, time
def f(event):
    outcomes = []
    for host, port in event:
        began = time.monotonic()
        with socket.socket() as sock:
            sock.settimeout(5)
            outcomes.append([sock.connect_ex((host, port)), time.monotonic() - began])
    return outcomes
"""
LOOK = """
import fcntl, os, socket, struct
def f(event):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        reported = fcntl.ioctl(sock, 0x8915, struct.pack("256s", b"eth0"))
    return {
        "address": socket.inet_ntoa(reported[20:24]),
        "links": sorted(name for _, name in socket.if_nameindex()),
        "resolv": open("/etc/resolv.conf").read(),
        "net": os.readlink("/proc/self/ns/net"),
    }
"""
ESCAPE = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(call):
    ctypes.set_errno(0)
    try:
        return ctypes.get_errno() if call() == -1 else 0
    except OSError as error:
        return error.errno
def f(event):
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    tried = {
        "setns": errno_of(lambda: libc.setns(own, 0x40000000)),
        "unshare": errno_of(lambda: libc.unshare(0x40000000)),
        "raw": errno_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
        "packet": errno_of(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "nft": errno_of(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)),
    }
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:  # RTM_NEWLINK: eth0 down
        header = (40).to_bytes(4, "little") + (16).to_bytes(2, "little") + (5).to_bytes(2, "little") + bytes(8)
        route.send(header + bytes(4) + (2).to_bytes(4, "little") + bytes(4) + (1).to_bytes(4, "little") + bytes(8))
        tried["link"] = -int.from_bytes(route.recv(4096)[16:20], "little", signed=True)
    with open("/proc/self/status") as status:
        tried["capabilities"] = [line.split()[1] for line in status if line.startswith("Cap")]
    return tried
"""
PROGRAM = """#!/usr/bin/python3
import json, os, urllib.request
base = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(base + "next") as asked:
        number, event = asked.headers["Lambda-Runtime-Aws-Request-Id"], json.load(asked)
    urllib.request.urlopen(base + number + "/response", data=json.dumps([event]).encode()).close()
"""
WAITS_FOR_ITS_INITSCRIPT = """
import os, signal, socket
from sockd_zygote.handlers import initscript_link
link = socket.socket(fileno=os.dup(initscript_link.offered))
def f(event):
    if b"abort" in link.recv(4096):
        signal.pause()  # the launch is over: be killed
"""


@pytest.fixture(scope="module")
def world(ledger_of_module: None) -> Iterator[Lab]:
    with lab() as world:
        yield world


@pytest.fixture(scope="module")
def index(world: Lab) -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add(wheel("slow", "1.0", {"slow.py": SLOW}))
    yield index
    index.close()


@pytest.fixture(scope="module", autouse=True)
def listening(world: Lab) -> None:
    """What a function could reach."""
    world.listen(world.internet, PUBLIC, PORT)
    world.listen(world.internet, PRIVATE, PORT)
    world.listen(world.host, HOST, PORT)


def test_the_init_of_a_snapshot_reaches_what_the_rules_allow_and_no_more(daemon: RunningDaemon) -> None:
    tried = [[PUBLIC, PORT], [PRIVATE, PORT], [HOST, PORT]]
    source = CONNECT + f"IN_INIT = [outcome for outcome, _ in f({tried})]\n"
    source += "def handler(event, context): return IN_INIT, [outcome for outcome, _ in f(event)]\n"
    function, said = deploy(daemon, "snapped", source, network="private", egress=[f"{PUBLIC}:{PORT}"])
    assert function["snapshot"] == "serving", said
    answer = daemon.run("snapped", tried)
    assert origin(answer) == "template"
    in_init, in_request = answer.json
    assert in_init == in_request and in_init[0] == 0 and all(in_init[1:])


def test_it_reaches_what_its_rules_allow_and_all_else_is_refused_at_once(daemon: RunningDaemon) -> None:
    daemon.deploy("asks", CONNECT, network="private", egress=[f"{PUBLIC}:{PORT}"])
    own_port = int(daemon.url.rpartition(":")[2])
    others = [
        (PUBLIC, OTHER_PORT),
        (PRIVATE, PORT),
        (METADATA, 80),
        (HOST, PORT),
        (HOST, own_port),
        ("169.254.1.1", 80),
    ]
    allowed, *refused = daemon.call("asks", [(PUBLIC, PORT), *others])
    assert allowed[0] == 0
    assert all(code in REFUSED and seconds < 3 for code, seconds in refused), refused
    assert daemon.call("asks", [("127.0.0.1", own_port)])[0][0] == errno.ECONNREFUSED, "the loopback is its own"


def test_each_sandbox_has_an_address_of_its_own_that_no_other_reaches_or_gets_again(daemon: RunningDaemon) -> None:
    daemon.deploy("looks", LOOK, network="private", reuse_sandbox=False)
    seen = [daemon.call("looks") for _ in range(4)]
    assert all(each["links"] == ["eth0", "lo"] and each["resolv"] == "nameserver 169.254.1.1\n" for each in seen)
    assert len({each["address"] for each in seen}) == 4
    waits = "import socket\ndef f(event):\n    s = socket.create_server(('', 4433)); s.settimeout(0.5)\n"
    waits += "    try: return bool(s.accept())\n    except TimeoutError: return False\n"
    daemon.deploy("listens", waits, network="private")
    daemon.deploy("probes", CONNECT, network="private", egress=["100.0.0.0/8"])
    near = [f"100.64.{number // 256}.{number % 256}" for number in range(1, 64)]
    listened, probed = at_once(
        2, lambda n: daemon.call("listens") if n == 0 else daemon.call("probes", [(each, 4433) for each in near])
    )
    assert listened is False
    own = [code for code, _ in probed if code not in REFUSED]
    assert not own or set(own) == {errno.ECONNREFUSED}


def test_spares_and_zygotes_with_packages_serve_it(daemon: RunningDaemon) -> None:
    code = "import slow, os\ndef f(event): return [slow.PID, os.readlink('/proc/self/ns/net')]\n"
    daemon.deploy("imports", {"f.py": code, "requirements.txt": "slow==1.0"}, network="private", reuse_sandbox=False)
    assert daemon.call("imports")[0] == 1, "imported in the sandbox itself"
    node = daemon.when(lambda: daemon.node("slow==1.0", network="private"))
    assert node["network"] == "private"
    daemon.wait_verified()
    daemon.call("imports")
    daemon.wait_verified()
    answers = [daemon.run("imports") for _ in range(4)]
    pids = {answer.json[0] for answer in answers}
    assert len(pids) == 1 and pids != {1}, "forks of one Zygote that has imported it"
    assert len({answer.json[1] for answer in answers}) == 4
    daemon.when(lambda: daemon.node(network="private")["spares"])  # type: ignore[index]
    daemon.deploy("bare", LOOK, network="private", reuse_sandbox=False)
    origins = {daemon.run("bare").headers["x-sockd-origin"] for _ in range(3)}
    assert "spare" in origins


def test_a_spare_has_the_rules_of_the_function_that_it_becomes(daemon: RunningDaemon) -> None:
    daemon.deploy("may", CONNECT, network="private", egress=[f"{PUBLIC}:{PORT}"], reuse_sandbox=False)
    daemon.deploy("may-not", CONNECT, network="private", egress=[], reuse_sandbox=False)
    for _ in range(4):
        assert daemon.call("may", [(PUBLIC, PORT)])[0][0] == 0
        assert daemon.call("may-not", [(PUBLIC, PORT)])[0][0] in REFUSED


def test_a_start_tells_where_its_network_came_from(daemon: RunningDaemon) -> None:
    code = "import time\ndef f(event): time.sleep(0.2)\n"
    daemon.deploy("many", code, network="private", reuse_sandbox=False, concurrency=12)
    answers = at_once(12, lambda n: daemon.run("many"))
    reported = [daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json for answer in answers]
    forked = [each for each in reported if each["origin"] == "zygote"]
    details = [span["detail"] for each in forked for span in each["spans"] if span["name"] == "network"]
    assert len(details) == len(forked) > 0 and set(details) <= {"pool hit", "made on the path"}
    spares = [span for each in reported if each["origin"] == "spare" for span in each["spans"]]
    assert not [span for span in spares if span["name"] == "network"], "those had one before"


def test_an_initscript_of_every_version_reaches_what_its_functions_rules_now_allow(daemon: RunningDaemon) -> None:
    body = "(if (i32.lt_s (call $connect @address) (i32.const 0)) (then (call $abort_launch (i32.const 7) @text)))"
    wasm = module(body, address=f"http://{PUBLIC}:{PORT}", text="refused")
    files: dict[str, str | bytes] = {"f.py": WAITS_FOR_ITS_INITSCRIPT, "init.wasm": wasm}
    rules = [f"{PUBLIC}:{PORT}"]
    settings: dict[str, Any] = {"network": "private", "reuse_sandbox": False, "initscript": {"wasm": "init.wasm"}}
    version = daemon.deploy("scripted", files, egress=rules, **settings)["version_number"]
    assert daemon.manage("POST", "/functions/scripted/versions", b"{}").status == 200
    daemon.wait_line(READY)
    for egress, status in ((rules, 200), ([], 500), (rules, 200)):
        changed = daemon.manage("PATCH", "/functions/scripted/settings", json.dumps({"egress": egress}))
        assert (changed.status, changed.json["version_number"]) == (200, version), changed
        for name in ("scripted", "scripted:1"):
            answer = daemon.run(name, 1)
            assert answer.status == status, (name, egress, answer)
            assert status == 200 or answer.json["errorType"] == "Initscript.LaunchAborted"


def test_a_published_version_is_cut_off_while_the_last_deploy_has_another_network(daemon: RunningDaemon) -> None:
    daemon.deploy("cut", CONNECT, network="private", egress=[f"{PUBLIC}:{PORT}"])
    assert daemon.manage("POST", "/functions/cut/versions", b"{}").status == 200
    daemon.deploy("cut", CONNECT, network="host")
    assert daemon.call("cut:1", [(PUBLIC, PORT)])[0][0] == 0
    changed = daemon.manage("PATCH", "/functions/cut/settings", b'{"egress": []}')
    reported = changed.json
    assert (changed.status, reported["network"], reported["egress"], reported["has_private"]) == (200, "host", [], True)
    assert daemon.call("cut:1", [(PUBLIC, PORT)])[0][0] in REFUSED


def test_it_has_no_power_over_its_network_and_keeps_no_descriptor_of_it(daemon: RunningDaemon) -> None:
    daemon.deploy("escapes", ESCAPE, network="private")
    tried = daemon.call("escapes")
    assert set(tried.pop("capabilities")) == {"0" * 16}
    assert all(tried.values()), tried
    assert tried["setns"] == tried["unshare"] == tried["link"] == errno.EPERM


@pytest.mark.parametrize("network", ["private", "none"])
@pytest.mark.parametrize("settings", [{}, {"runtime": "provided"}], ids=["bootstrap", "provided"])
def test_a_program_behind_the_runtime_api_works(daemon: RunningDaemon, network: str, settings: dict[str, str]) -> None:
    daemon.deploy("program", archive(PROGRAM), network=network, **settings)
    assert daemon.call("program", 5) == [5]


def test_what_it_holds_is_reported_and_given_back(daemon: RunningDaemon, world: Lab) -> None:
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])
    while (reported := daemon.status()["networks"])["policies"]:
        pass
    assert reported["router"] and reported["ready"] > 0


def test_a_worker_that_was_killed_leaves_nothing_that_the_next_does_not_remove(
    daemon: RunningDaemon, world: Lab, tmp_path: Any
) -> None:
    def links() -> set[str]:
        with network_namespaces.entered(world.host):
            return {name for _, name in socket.if_nameindex()}

    before = links()
    other = RunningDaemon.start(tmp_path / "state")
    try:
        other.deploy("asks", LOOK, network="private")
        assert other.call("asks")["links"] == ["eth0", "lo"]
        assert links() > before
        other.kill()
    finally:
        other.close()
    again = RunningDaemon.start(tmp_path / "state")
    try:
        assert links() == before
        assert again.call("asks")["links"] == ["eth0", "lo"]
        assert again.terminate() == 0, again.lines
    finally:
        again.close()
    assert links() == before
