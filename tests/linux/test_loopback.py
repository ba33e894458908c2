"""One port on both loopbacks, or on neither."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sockd.linux.network import loopback

ROOT = Path(loopback.__file__).parents[2]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no ::1")


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_a_free_port_is_the_same_on_all_addresses() -> None:
    sockets = loopback.bind(loopback.LOOPBACKS, 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert len(sockets) == 1 + has_ipv6()
    finally:
        close(sockets)


@needs_ipv6
def test_a_port_that_one_of_them_has_no_more_is_held_on_neither() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as refused:
            loopback.bind(loopback.LOOPBACKS, port)
        assert refused.value.errno == errno.EADDRINUSE
        assert refused.value.__notes__ == [f"[::1]:{port}"]
        close(loopback.bind(["127.0.0.1"], port))


@needs_ipv6
def test_a_picked_port_that_is_taken_elsewhere_is_picked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel picks for the first address alone."""
    others = [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(3)]
    ports = iter([other.getsockname()[1] for other in others])
    real = loopback._bound

    def bound(host: str, port: int, prepare: object) -> socket.socket:
        if host == "127.0.0.1" and port == 0:
            return real(host, next(ports, 0), None)
        return real(host, port, None)

    monkeypatch.setattr(loopback, "_bound", bound)
    try:
        sockets = loopback.bind(loopback.LOOPBACKS, 0)
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        close(sockets)
    finally:
        close(others)


def test_an_address_that_is_no_loopback_must_be_there() -> None:
    with pytest.raises(OSError) as refused:
        loopback.bind(["192.0.2.1"], 0)
    assert refused.value.errno == errno.EADDRNOTAVAIL


WITHOUT_IPV6 = """
import ctypes, fcntl, socket, struct
assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w").write("1")
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
from sockd.linux.network import loopback
print([sock.getsockname()[0] for sock in loopback.bind(loopback.LOOPBACKS, 0)])
"""


@pytest.mark.root
@needs_ipv6
def test_a_host_without_ipv6_has_one_loopback() -> None:
    child = subprocess.run([sys.executable, "-c", WITHOUT_IPV6], cwd=ROOT, capture_output=True, text=True, check=True)
    assert child.stdout == "['127.0.0.1']\n"
