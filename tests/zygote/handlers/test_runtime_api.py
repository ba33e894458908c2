"""Whose connection the Runtime API has accepted."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from sockd_zygote.handlers.runtime_api import LOOPBACK, is_own


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, LOOPBACK), (socket.AF_INET6, f"::ffff:{LOOPBACK}")], ids=["IPv4", "IPv6"]
)
def test_a_connection_of_our_own_is_known_whatever_its_sockets_family(
    family: socket.AddressFamily, address: str
) -> None:
    """Java connects by IPv6 sockets."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            client = socket.socket(family)
        except OSError as error:
            pytest.skip(f"this kernel has no such sockets: {error.strerror}")
        with client:
            client.connect((address, port))
            accepted, peer = listener.accept()
            with closing(accepted):
                assert is_own(peer[1], port)
                assert not is_own(peer[1], 1)
