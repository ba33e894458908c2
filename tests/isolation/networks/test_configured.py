"""The worker's [network] and [function] egress: what cannot work is refused at start, with key, value and what is right."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from typing import Any

import pytest

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadConfig, BadFunctionConfig
from sockd.isolation.networks.configured import Configured


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"range": "100.64.0.0/24"}, "network.range = '100.64.0.0/24': must have at least 4096 addresses"),
        ({"range": "fd00::/8"}, "network.range: 'fd00::/8' is not a network of IPv4"),
        *[
            ({key: network}, f"network.{key} = '{network}': must have no loopback, link-local, multicast or reserved")
            for key in ("range", "uplink")
            for network in ("127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "0.0.0.0/8", "240.0.0.0/8", "0.0.0.0/0")
        ],
        ({"uplink": "100.64.0.0/16"}, "network.uplink = '100.64.0.0/16': must have no address of network.range"),
        ({"uplink": "198.18.0.0/31"}, "network.uplink = '198.18.0.0/31': must have at least 4 addresses"),
        ({"denied": ("metadata",)}, "network.denied: 'metadata' is not a network of IPv4"),
        *[
            (
                {"nameservers": ("10.0.0.2", wrong)},
                f"network.nameservers, '{wrong}': must be addresses, of IPv4 or IPv6",
            )
            for wrong in ("dns.google", "44.7.7.53:53", "[::1]:53", "fe80::1%eth0", "0.0.0.0", "")
        ],
        ({"connections": 0}, "network.connections = 0: must be between 1 and"),
        ({"new_connections": 0}, "network.new_connections = 0: must be between 1 and"),
        ({"queries": -1}, "network.queries = -1: must be between 1 and"),
        ({"max_rules": 0}, "network.max_rules = 0: must be between 1 and 4096"),
        ({"pool": -1}, "network.pool = -1: must be between 0 and"),
        ({"idle_pools": -1}, "network.idle_pools = -1: must be between 0 and"),
        ({"pool": 4, "least_pool": 5}, "network.least_pool = 5: must be at most network.pool, 4"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(says)):
        Configured.of(NetworkConfig(**settings))


def test_what_works_is_taken() -> None:
    config = NetworkConfig(
        range="10.128.0.0/12", uplink="10.144.0.0/30", nameservers=("10.0.0.2", "fd00::2"), pool=0, least_pool=0
    )
    configured = Configured.of(config)
    assert configured.addresses == IPv4Network("10.128.0.0/12") and configured.uplink == IPv4Network("10.144.0.0/30")


@pytest.mark.parametrize(
    ("entry", "setting"),
    [("100.64.0.0/10", "range"), ("100.100.1.2:5432", "range"), ("198.18.0.1", "uplink"), ("10.9.0.1", "denied")],
)
def test_a_rule_within_the_workers_own_networks_is_refused(entry: str, setting: str) -> None:
    configured = Configured.of(NetworkConfig(denied=("10.9.0.0/16",)))
    with pytest.raises(BadFunctionConfig, match=rf"entry 2, '{entry}': .* is never reached .* \(network\.{setting}\)"):
        configured.parse(["100.0.0.0/8", entry])


def test_the_default_of_functions_is_checked() -> None:
    configured = Configured.of(NetworkConfig(max_rules=2))
    configured.check_defaults(None)
    configured.check_defaults(["api.example.com", "10.0.0.0/8"])
    for rules, says in (
        (["bad rule"], "function.egress, entry 1, 'bad rule'"),
        (["internet"] * 3, "function.egress has 3"),
    ):
        with pytest.raises(BadConfig, match=says):
            configured.check_defaults(rules)
