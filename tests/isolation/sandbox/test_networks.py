"""Whom a handler sandbox reaches with the host's network, and without one.

The handlers here are sources: each runs in a sandbox, so it imports what it needs itself.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from tests.support.harness import Harness

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_harness", ["detached", "attached"], indirect=True)]


def test_without_network_every_connection_fails_at_once(harness: Harness) -> None:
    def connect(event: Any) -> Any:
        import socket

        outcomes = []
        targets = [("192.0.2.1", 80), ("10.0.0.1", 53), ("169.254.169.254", 80)]
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for target in targets:
                with socket.socket(socket.AF_INET, kind) as sock:
                    sock.setblocking(False)  # what did not fail at once would be EINPROGRESS
                    try:
                        sock.connect(target)
                    except OSError as error:
                        outcomes.append(error.errno)
        return outcomes

    assert harness.answer(connect, network="none") == [errno.ENETUNREACH] * 6


@pytest.mark.parametrize("network", ["host", "none"])
def test_its_own_host_name_has_an_address(network: str, harness: Harness) -> None:
    def look(event: Any) -> Any:
        import socket

        return socket.gethostbyname(socket.gethostname())

    assert harness.answer(look, network=network) == "127.0.0.1"


def test_without_network_the_loopback_is_its_own(harness: Harness) -> None:
    def connect(port: Any) -> Any:
        import socket

        outcomes = []
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as sock:
                outcomes.append(sock.connect_ex((host, port)))
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"to nobody", ("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            outcomes.append(server.accept()[1][0])
        return outcomes

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(server.getsockname())
        ipv4, ipv6, own = harness.answer(connect, server.getsockname()[1], network="none")
        for sock in (server, datagrams):
            sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
    assert ipv4 == errno.ECONNREFUSED and own == "127.0.0.1"
    assert ipv6 in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def test_with_the_hosts_network_it_reaches_loopback(harness: Harness) -> None:
    def connect(port: Any) -> Any:
        import socket

        with socket.create_connection(("127.0.0.1", port)) as sock:
            return sock.recv(100).decode()

    with socket.create_server(("127.0.0.1", 0)) as server:
        running = harness.start(connect)
        greeted = harness.loop.run_in_executor(None, _greet, server)
        assert running.answer(server.getsockname()[1]) == "welcome"
        harness.loop.run_until_complete(greeted)


def _greet(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.sendall(b"welcome")


def test_abstract_sockets_of_the_host_are_out_of_reach_without_network(harness: Harness) -> None:
    def connect(name: Any) -> Any:
        import socket

        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex("\0" + name)

    name = f"sockd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        assert harness.answer(connect, name, network="none") == errno.ECONNREFUSED
        assert harness.answer(connect, name, network="host") == 0
