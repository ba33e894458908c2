"""The addresses of this network namespace, from /proc/net."""

from __future__ import annotations

import subprocess
from ipaddress import ip_network
from pathlib import Path

from sockd.linux.network.own_addresses import LOOPBACK, own_addresses

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/31 1 0 0
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 10.1.2.3
        /32 host LOCAL
     |-- 10.1.2.255
        /32 link BROADCAST
Local:
     |-- 10.1.2.3
        /32 host LOCAL
"""


def test_loopback_networks_and_addresses_of_interfaces(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(FIB_TRIE)
    assert own_addresses(tmp_path) == [*LOOPBACK, ip_network("10.1.2.3/32")]
    (tmp_path / "if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 04 40 00 82     eth0\n"
    )
    assert own_addresses(tmp_path) == [*LOOPBACK, ip_network("10.1.2.3/32"), ip_network("fd00::2/128")]


def test_every_address_that_the_kernel_reports_is_listed() -> None:
    reported = subprocess.run(
        ["hostname", "--all-ip-addresses"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {ip_network(each) for each in reported} <= set(own_addresses())
