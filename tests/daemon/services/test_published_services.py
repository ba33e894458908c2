"""Services at a port of the host: any protocol over TCP, before the program runs, while it does, and after it has ended."""

from __future__ import annotations

import contextlib
import shutil
import socket
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.services.test_services import is_settled, log_of, row, wait_state
from tests.support.cases import case

pytestmark = pytest.mark.root

ECHO = """
import os, socket, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            if line == b"exit\\n":
                os._exit(4)
            if line == b"bye\\n":
                return
            self.wfile.write(b"one:" + line)
        self.wfile.write(b"end\\n")
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128
Server(("127.0.0.1", int(os.environ["PORT"])), Echo).serve_forever()
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "echo.py"]
network = "none"
[service]
port = 7
"""


@pytest.fixture
def port() -> int:
    """A port of the host that is free on both loopback addresses."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        number: int = six.getsockname()[1]
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return number
    return 0


def files(port: int, settings: str = "", source: str = ECHO) -> dict[str, str]:
    return {"echo.py": source, "sockd.toml": f"{TOML}publish = {port}\n{settings}"}


@contextlib.contextmanager
def connected(port: int, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=60) as client:
        yield client


def asked(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    with client.makefile("rb") as lines:
        return lines.readline()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_first_connection_starts_the_program_and_bytes_pass_both_ways(
    daemon: RunningDaemon, port: int, host: str
) -> None:
    name = "echo-4" if host == "127.0.0.1" else "echo-6"
    daemon.deploy(name, files(port))
    assert row(daemon, name)["state"] == "stopped" and row(daemon, name)["published"] == port
    with connected(port, host) as client, connected(port, host) as other:
        assert (asked(client, b"a\n"), asked(other, b"b\n"), asked(client, b"c\n")) == (
            b"one:a\n",
            b"one:b\n",
            b"one:c\n",
        )
        assert row(daemon, name)["connections"] == 2
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"end\n" and client.recv(100) == b""
        other.sendall(b"bye\n")
        assert other.recv(100) == b""
    daemon.when(lambda: not row(daemon, name)["connections"])
    assert row(daemon, name)["starts"] == 1


def test_much_data_passes_whole(daemon: RunningDaemon, port: int) -> None:
    daemon.deploy("much", files(port))
    sent = b"".join(b"%060d\n" % number for number in range(100_000))
    with connected(port) as client, client.makefile("rb") as lines:

        def send() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        read = lines.read()
        sending.join()
    assert read == b"".join(b"one:%060d\n" % number for number in range(100_000)) + b"end\n"


def test_a_connection_holds_a_service_and_its_end_lets_it_stop(daemon: RunningDaemon, port: int) -> None:
    daemon.deploy("held", files(port, "idle_s = 0.2\n"))
    with connected(port) as client:
        asked(client, b"a\n")
        assert is_settled(row(daemon, "held"), "running")
    wait_state(daemon, "held", "stopped")
    with connected(port) as client:
        assert asked(client, b"b\n") == b"one:b\n"


@case("L10", "end the program behind a published port", expect="its connections end; the next one has a new program")
def test_a_program_that_ends_ends_its_connections_and_the_next_one_is_served(daemon: RunningDaemon, port: int) -> None:
    daemon.deploy("ending", files(port))
    with connected(port) as client:
        assert asked(client, b"exit\n") == b""

    def is_served() -> bool:
        with connected(port) as client:
            return asked(client, b"again\n") == b"one:again\n"

    daemon.when(is_served)  # a connection may reach the program that ends
    assert "exit status 4" in row(daemon, "ending")["reason"] and "exit status 4" in log_of(daemon, "ending")


def test_a_deploy_keeps_the_port_and_open_connections(daemon: RunningDaemon, port: int) -> None:
    daemon.deploy("moving", files(port))
    with connected(port) as old:
        assert asked(old, b"a\n") == b"one:a\n"
        daemon.deploy("moving", files(port, source=ECHO.replace("one:", "two:")))

        def is_new() -> bool:
            with connected(port) as client:
                return asked(client, b"b\n") == b"two:b\n"

        daemon.when(is_new)
        assert asked(old, b"c\n") == b"one:c\n"


@case(
    "L11",
    "publish a port that another process has, and withdraw it",
    expect="sockd ps says so; it is closed with its service",
)
def test_a_port_that_is_taken_is_reported_and_one_that_is_withdrawn_is_closed(daemon: RunningDaemon, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        daemon.deploy("late", files(port))
        assert "Address already in use" in row(daemon, "late")["port_reason"]
    daemon.deploy("late", files(port, "idle_s = 50\n"))
    with connected(port) as client:
        assert asked(client, b"a\n") == b"one:a\n"
    daemon.remove("late")
    with pytest.raises(ConnectionRefusedError), connected(port):
        pass


@case("L12", "bind a published port in a function", expect="EPERM")
def test_a_published_port_can_be_bound_by_no_function(daemon: RunningDaemon, port: int) -> None:
    daemon.deploy("guarded", files(port))
    code = """
    import errno, socket
    def f(event):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.2", event))
            except OSError as error:
                return errno.errorcode[error.errno]
    """
    daemon.deploy("binder", textwrap.dedent(code), network="host")
    assert daemon.call("binder", port) == "EPERM"


def test_a_port_beyond_loopback_is_refused_unless_the_worker_allows_the_address(
    daemon: RunningDaemon, port: int, tmp_path: Path
) -> None:
    """127.9.9.9 stands for an address of the host's own: it is on loopback, but none of those that need no word."""
    settings = 'publish_on = ["127.9.9.9"]\n'
    with pytest.raises(DeployFailed) as failed:
        daemon.deploy("open", files(port, settings))
    assert failed.value.type == "InvalidParameterValueException"
    assert "127.9.9.9" in failed.value.message and "network.publish_on" in failed.value.message
    for number, address, words in ((port, "host", "is no address"), (0, "::1", "goes with service.publish")):
        with pytest.raises(DeployFailed, match=words):
            daemon.deploy("open", files(number, f'publish_on = ["{address}"]\n'))
    allowed = '[network]\npublish_on = ["127.9.9.9"]\n'
    own = RunningDaemon.start(tmp_path / "state", allowed)
    try:
        own.deploy("open", files(port, settings))
        with connected(port, "127.9.9.9") as client:
            assert asked(client, b"a\n") == b"one:a\n"
        with pytest.raises(ConnectionRefusedError), connected(port):
            pass
        own.deploy("open", files(port))
        with connected(port) as client:
            assert asked(client, b"a\n") == b"one:a\n"
        own.deploy("open", files(port, settings))
        assert own.terminate() == 0
        own.end_reading()
        own = RunningDaemon.start(tmp_path / "state")
        assert "network.publish_on" in row(own, "open")["port_reason"], "an address that the worker allows no more"
    finally:
        own.close()


def test_memcached_of_debian_runs_as_a_service(daemon: RunningDaemon, port: int) -> None:
    if shutil.which("memcached") is None:
        pytest.skip("needs memcached: scripts/install-servers")
    toml = f"""
    kind = "service"
    command = ["memcached", "-l", "127.0.0.1", "-p", "11211", "-m", "32"]
    network = "none"
    service = {{ port = 11211, publish = {port}, min = 1 }}
    """
    daemon.deploy("cache", {"sockd.toml": toml}, check=True)
    with connected(port) as client:
        assert asked(client, b"set greeting 0 0 5\r\nhello\r\n") == b"STORED\r\n"
    with connected(port) as client, client.makefile("rb") as lines:
        client.sendall(b"get greeting\r\n")
        assert [lines.readline() for _ in range(3)] == [b"VALUE greeting 0 5\r\n", b"hello\r\n", b"END\r\n"]
