"""Whom a handler sandbox reaches with the host's network, and without one.

The handlers here are sources: each runs in a sandbox, so it imports what it needs itself.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from tests.support.house import House

pytestmark = [pytest.mark.root, pytest.mark.parametrize("whole_house", ["late", "early"], indirect=True)]


def test_without_network_every_connection_fails_at_once(house: House) -> None:
    def connect(port: Any) -> Any:
        import socket

        outcomes = []
        targets = [("127.0.0.1", port), ("192.0.2.1", 80), ("10.0.0.1", 53), ("169.254.169.254", 80)]
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for target in targets:
                with socket.socket(socket.AF_INET, kind) as sock:
                    sock.setblocking(False)  # what did not fail at once would be EINPROGRESS
                    try:
                        sock.connect(target)
                    except OSError as error:
                        outcomes.append(error.errno)
        with socket.socket(socket.AF_INET6) as sock:
            sock.setblocking(False)
            try:
                sock.connect(("::1", port))
            except OSError as error:
                outcomes.append(error.errno)
        return outcomes

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcomes = house.answer(connect, port, network="none")
    assert len(outcomes) == 9
    assert outcomes[:8] == [errno.ENETUNREACH] * 8
    assert outcomes[8] in (errno.ENETUNREACH, errno.EADDRNOTAVAIL)


def test_with_the_hosts_network_it_reaches_loopback(house: House) -> None:
    def connect(port: Any) -> Any:
        import socket

        with socket.create_connection(("127.0.0.1", port)) as sock:
            return sock.recv(100).decode()

    with socket.create_server(("127.0.0.1", 0)) as server:
        running = house.start(connect)
        greeted = house.loop.run_in_executor(None, _greet, server)
        assert running.answer(server.getsockname()[1]) == "welcome"
        house.loop.run_until_complete(greeted)


def _greet(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.sendall(b"welcome")


def test_abstract_sockets_of_the_host_are_out_of_reach_without_network(house: House) -> None:
    def connect(name: Any) -> Any:
        import socket

        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex("\0" + name)

    name = f"sockd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        assert house.answer(connect, name, network="none") == errno.ECONNREFUSED
        assert house.answer(connect, name, network="host") == 0
