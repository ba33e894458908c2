"""Configured: the worker's `[network]`, checked, with its texts as networks. Owns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadConfig, BadFunctionConfig
from sockd.isolation.networks import egress
from sockd.isolation.networks.egress import NEVER, UNROUTED, Egress

LEAST_ADDRESSES = 4096
"""The fewest addresses of `network.range`: addresses should not come round while anything remembers them."""
GATEWAY_PORTS = (53, egress.FUNCTIONS_PORT)
LEAST_UPLINK = 4
"""Addresses of `network.uplink`: the smallest network that has two for hosts."""
BOUNDS: dict[str, tuple[int, int]] = {
    "pool": (0, 1 << 16),
    "least_pool": (0, 1 << 16),
    "idle_pools": (0, 1 << 16),
    "max_rules": (1, 4096),
    "connections": (1, 1 << 20),
    "new_connections": (1, 1 << 20),
    "queries": (1, 1 << 20),
    "all_connections": (1, 1 << 30),
    "function_connections": (1, 1 << 30),
}
"""Least and most of each number; of `max_rules`, as many as a sockd.toml may have."""


@dataclass(frozen=True, slots=True)
class Configured:
    """`of` checks a configuration; `parse` checks rules by it."""

    addresses: IPv4Network
    """`network.range`."""
    uplink: IPv4Network
    denied: Sequence[IPv4Network]
    max_rules: int
    host_ports: Sequence[int]

    @classmethod
    def of(cls, config: NetworkConfig) -> Configured:
        """Raises: BadConfig: the key, its value and what is right."""
        _check_numbers(config)
        for each in config.nameservers:
            _check_nameserver(each)
        addresses = _addresses("range", config.range, LEAST_ADDRESSES)
        uplink = _addresses("uplink", config.uplink, LEAST_UPLINK)
        if addresses.overlaps(uplink):
            raise BadConfig(f"network.uplink = {config.uplink!r}: must have no address of network.range, {addresses}")
        return cls(
            addresses, uplink, [_network("denied", each) for each in config.denied], config.max_rules, config.host_ports
        )

    @property
    def closed(self) -> egress.Denied:
        """Networks that no rule opens, in addition to those that never are."""
        own = {self.addresses: "network.range", self.uplink: "network.uplink"}
        return dict.fromkeys(self.denied, "network.denied") | own

    def parse(self, entries: Sequence[str] | None, host: Iterable[str] = ()) -> Egress:
        """Rules as they are given. Args: host: addresses of the host. Raises: BadFunctionConfig."""
        own = dict.fromkeys(map(IPv4Network, host), "it is an address of the host")
        rules = egress.parse(entries, most=self.max_rules, denied={**own, **self.closed})
        for port in self.unopened(rules):
            open_ones = ", ".join(map(str, self.host_ports)) or "none"
            raise BadFunctionConfig(
                f"egress, host:{port}: the worker's configuration opens other ports of the host (network.host_ports): {open_ones}"
            )
        return rules

    def unopened(self, rules: Egress) -> list[int]:
        """The ports of the host that rules name and `network.host_ports` does not."""
        return [port for port in rules.host_ports if port not in self.host_ports]

    def check_defaults(self, entries: Sequence[str] | None) -> None:
        """The rules of functions that say nothing, `[function] egress`. Raises: BadConfig."""
        try:
            self.parse(entries)
        except BadFunctionConfig as error:
            raise BadConfig(f"function.{error.message}") from None


def _check_numbers(config: NetworkConfig) -> None:
    for key, (least, most) in BOUNDS.items():
        value = getattr(config, key)
        if value is not None and not least <= value <= most:
            raise BadConfig(f"network.{key} = {value}: must be between {least} and {most}")
    for port in config.host_ports:
        if not 1 <= port <= 65535 or port in GATEWAY_PORTS:
            raise BadConfig(f"network.host_ports, {port}: must be ports of TCP, 1 to 65535, but for 53 and 80")
    if config.least_pool > config.pool:
        raise BadConfig(f"network.least_pool = {config.least_pool}: must be at most network.pool, {config.pool}")


def _check_nameserver(text: str) -> None:
    try:
        if "%" in text or ip_address(text).is_unspecified:
            raise ValueError
    except ValueError:
        wanted = "must be addresses, of IPv4 or IPv6, without a port (which is 53)"
        raise BadConfig(f"network.nameservers, {text[:80]!r}: {wanted}, such as 10.0.0.2") from None


def _addresses(key: str, text: str, least: int) -> IPv4Network:
    """A network for our own use."""
    network = _network(key, text)
    if network.num_addresses < least:
        raise BadConfig(f"network.{key} = {text!r}: must have at least {least} addresses")
    for each in (*NEVER, *UNROUTED):
        if network.overlaps(each):
            wanted = "must have no loopback, link-local, multicast or reserved address, such as 100.64.0.0/10"
            raise BadConfig(f"network.{key} = {text!r}: {wanted}; {each} is such")
    return network


def _network(key: str, text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise BadConfig(f"network.{key}: {text[:80]!r} is not a network of IPv4: {error}") from None
