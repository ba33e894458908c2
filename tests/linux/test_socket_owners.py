"""Who made the other end of a connection: what the kernel says, and not what anybody else does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sockd.linux.network.socket_owners import owner

CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
s = socket.socket()
s.connect(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_of_our_own_is_ours(family: socket.AddressFamily, host: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        server, address = listener.accept()
        with server:
            assert owner(address[:2], server.getsockname()[:2]) == os.getuid()
            # The other direction is another socket.
            assert owner(client.getpeername()[:2], client.getsockname()[:2]) == os.getuid()
            assert owner(address[:2], (host, 1)) is None
            assert owner((host, address[1] ^ 1), server.getsockname()[:2]) is None


@pytest.mark.root
def test_another_users_connection_is_theirs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        command = [sys.executable, "-c", CONNECT, str(listener.getsockname()[1]), "268435457"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            server, address = listener.accept()
            with server:
                assert owner(address, server.getsockname()) == 0x10000001
            assert child.stdin is not None
            child.stdin.close()


def test_no_one_owns_a_connection_that_its_maker_has_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, address = listener.accept()
        with server:
            client.close()
            assert server.recv(1) == b""
            assert owner(address, server.getsockname()) is None


def test_a_listener_is_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert owner(listener.getsockname(), ("127.0.0.1", 9)) is None
