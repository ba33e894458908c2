"""Which addresses of the host a build may connect to."""

from __future__ import annotations

from sockd.linux.network.resolv_conf import nameservers
from sockd.starts.builds.build_network import reachable

NAMESERVERS = {(each, 53) for each in nameservers()}


def test_indexes_and_proxies_are_reachable_at_their_ports() -> None:
    variables = {
        "UV_DEFAULT_INDEX": "https://127.0.0.2/simple",
        "UV_INDEX": "sockd-0=http://127.0.0.3:3141/root/+simple sockd-1=http://[::1]:80/a=b",
        "HTTPS_PROXY": "http://localhost:3128",
        "ALL_PROXY": "socks5h://127.0.0.4",
        "NO_PROXY": "127.0.0.5,localhost",
        "UV_HTTP_TIMEOUT": "30",
    }
    expected = {("127.0.0.2", 443), ("127.0.0.3", 3141), ("::1", 80), ("127.0.0.1", 3128), ("127.0.0.4", 1080)}
    found = set(reachable(variables))
    assert found - {("::1", 3128)} == expected | NAMESERVERS


def test_urls_that_lead_nowhere_are_left_out() -> None:
    urls = ("http://name.invalid/simple", "http://127.0.0.1:port/", "file:///etc", "ftp://127.0.0.1/", "https://")
    assert set(reachable({"UV_INDEX": " ".join(urls)})) == NAMESERVERS
