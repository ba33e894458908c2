"""Services with the host's network: each program has a free port of the host, which no other sandbox can bind."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import socket
import textwrap
import urllib.request
from pathlib import Path

import pytest

from tests.daemon.images.test_images import upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.services.test_published_services import asked, connected, port
from tests.daemon.services.test_services import SERVER, get, row, wait_state
from tests.support.cases import case
from tests.support.emulated import counts_sockets
from tests.support.images.image_layouts import PYTHON, Files, python_files, write_layout

__all__ = ["port"]
pytestmark = [pytest.mark.root, counts_sockets]

TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "host"
[service]
"""
BINDER = """
import errno, socket
def f(event):
    with socket.socket(event.get("family", socket.AF_INET)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind((event["host"], event["port"]))
        except OSError as error:
            return errno.errorcode[error.errno]
    return "bound"
"""


def files(settings: str = "", source: str = SERVER) -> dict[str, str]:
    return {"server.py": source, "sockd.toml": TOML + settings}


@pytest.fixture(scope="module")
def binder(daemon: RunningDaemon) -> str:
    daemon.deploy("host-binder", textwrap.dedent(BINDER), network="host")
    return "host-binder"


def test_pythons_web_server_serves_over_the_front_at_a_port_of_the_host(daemon: RunningDaemon) -> None:
    command = '["sh", "-c", "exec /usr/bin/python3 -m http.server --bind 127.0.0.1 $PORT"]'
    toml = f'kind = "service"\ncommand = {command}\nnetwork = "host"\n[service]\n'
    daemon.deploy("files", {"hello.txt": "hello", "sockd.toml": toml}, check=True)
    answer = daemon.request("GET", "/run/files/hello.txt")
    assert (answer.status, answer.body) == (200, b"hello")
    number = row(daemon, "files")["port"]
    with open("/proc/sys/net/ipv4/ip_local_port_range") as bounds:
        first, last = map(int, bounds.read().split())
    assert number >= 10_000 and not first <= number <= last
    with urllib.request.urlopen(f"http://127.0.0.1:{number}/hello.txt", timeout=30) as direct:
        assert direct.read() == b"hello"


@case(
    "L17",
    "bind the port of a service with the host's network in a function",
    expect="EPERM, until the program has ended",
)
def test_a_function_of_another_uid_cannot_bind_a_services_port(daemon: RunningDaemon, binder: str) -> None:
    daemon.deploy("owner", files())
    number = int(get(daemon, "owner/x")["env"]["PORT"])
    for host, family in (("127.0.0.2", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::1", socket.AF_INET6)):
        assert daemon.call(binder, {"host": host, "family": int(family), "port": number}) == "EPERM"
    daemon.manage("PATCH", "/functions/owner/settings", json.dumps({"concurrency": 0}))
    wait_state(daemon, "owner", "stopped")
    free = {"host": "127.0.0.2", "port": number}
    daemon.when(lambda: daemon.call(binder, free) == "bound")


def test_services_that_start_at_once_have_ports_of_their_own(daemon: RunningDaemon) -> None:
    names = [f"at-once-{number}" for number in range(4)]
    for name in names:
        daemon.deploy(name, files())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        reported = list(pool.map(lambda name: get(daemon, f"{name}/x")["env"]["PORT"], names))
    assert len(set(reported)) == 4
    assert reported == [str(row(daemon, name)["port"]) for name in names]


def test_a_deploy_starts_the_next_program_at_another_port_next_to_the_old_one(daemon: RunningDaemon) -> None:
    daemon.deploy("rolled", files("min = 1\n"))
    daemon.when(lambda: row(daemon, "rolled")["state"] == "running")
    before = row(daemon, "rolled")["port"]
    with socket.create_connection(("127.0.0.1", before), timeout=30):
        daemon.deploy("rolled", files("min = 1\n", SERVER.replace('"one"', '"two"')))
        daemon.when(lambda: get(daemon, "rolled/x")["version"] == "two")
    assert row(daemon, "rolled")["port"] != before
    assert row(daemon, "rolled")["failures"] == 0


def test_a_program_that_ends_is_started_again_at_a_port_that_is_free(daemon: RunningDaemon) -> None:
    daemon.deploy("again", files())
    first = get(daemon, "again/x")
    daemon.request("GET", "/run/again/exit")
    second = daemon.when(
        lambda: answer.json if (answer := daemon.request("GET", "/run/again/x")).status == 200 else None
    )
    assert second["token"] != first["token"]
    assert second["env"]["PORT"] == str(row(daemon, "again")["port"])


def test_its_health_is_asked_for_and_a_published_port_leads_to_it(daemon: RunningDaemon, port: int) -> None:
    settings = f'publish = {port}\nready_path = "/x"\nhealth_path = "/x"\nhealth_s = 0.1\n'
    daemon.deploy("leading", files(settings), check=True)
    with connected(port) as client:
        assert asked(client, b"GET /x HTTP/1.0\r\n\r\n").endswith(b" 200 OK\r\n")
    assert row(daemon, "leading")["published"] == port and row(daemon, "leading")["failures"] == 0


def test_memcached_of_debian_runs_at_a_port_of_the_host(daemon: RunningDaemon, port: int) -> None:
    if shutil.which("memcached") is None:
        pytest.skip("needs memcached: scripts/install-servers")
    toml = f"""
    kind = "service"
    command = ["sh", "-c", "exec memcached -l 127.0.0.1 -p $PORT -m 32"]
    network = "host"
    service = {{ publish = {port}, min = 1 }}
    """
    daemon.deploy("host-cache", {"sockd.toml": toml}, check=True)
    with connected(port) as client:
        assert asked(client, b"set greeting 0 0 5\r\nhello\r\n") == b"STORED\r\n"
    with connected(port) as client, client.makefile("rb") as lines:
        client.sendall(b"get greeting\r\n")
        assert [lines.readline() for _ in range(3)] == [b"VALUE greeting 0 5\r\n", b"hello\r\n", b"END\r\n"]


def test_a_program_that_does_not_listen_on_its_port_is_refused_and_reported_it(daemon: RunningDaemon) -> None:
    with pytest.raises(DeployFailed, match="the port that the variable PORT names"):
        daemon.deploy("elsewhere", files(), check=True, env={"AT": "0"}, init_timeout_s=2)


LATE = """
import os, socket
port = int(os.environ["PORT"])
with socket.create_connection(("127.0.0.1", int(os.environ["TAKER"]))) as taker:
    taker.sendall(b"%d\\n" % port)
    taker.recv(1)
socket.create_server(("127.0.0.1", port))
"""


def test_a_port_that_a_process_of_the_host_takes_first_is_said_to_be_taken(daemon: RunningDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taker, concurrent.futures.ThreadPoolExecutor(1) as pool:

        def take() -> socket.socket:
            client, _ = taker.accept()
            with client, client.makefile("rb") as lines:
                return socket.create_server(("127.0.0.1", int(lines.readline())))

        taken = pool.submit(take)
        with pytest.raises(DeployFailed, match=r"status 1, and another process of the host has taken port \d+"):
            daemon.deploy("late", files("", LATE), check=True, env={"TAKER": str(taker.getsockname()[1])})
        taken.result().close()


def test_a_service_of_an_image_has_a_port_of_the_host(daemon: RunningDaemon, tmp_path: Path) -> None:
    server = Files(executable={"server": f"#!{PYTHON}\n{SERVER}"})
    layers: list[Files | bytes] = [python_files().tar(), server]
    write_layout(tmp_path, layers, {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin"], "User": "65534"})
    image = upload(daemon, tmp_path)
    daemon.deploy("imaged-host", {}, kind="service", image=image, network="host", service={}, check=True)
    reported = get(daemon, "imaged-host/path")
    assert reported["env"]["PORT"] == str(row(daemon, "imaged-host")["port"])
