"""The table [service] of `sockd.toml`: the settings of a program that keeps running and serves a port. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

import msgspec

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.setting_checks import check_bounds
from sockd.linux.network.loopback import LOOPBACKS

SERVICE = "service"
"""The value of `kind` for a program that keeps running."""
SERVICE_BOUNDS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "min": (0, 1),
    "idle_s": (0.1, 86_400),
    "drain_s": (0, 3600),
    "stop_s": (0, 60),
    "connections": (1, 65_536),
    "publish": (0, 65_535),
    "health_s": (0.1, 3600),
}
"""The least and the most of each number in the table [service]."""
FIRST_PORT = 1024
"""The first port that the host has not reserved for root."""
PATH = re.compile(r"(?:/[!-~]{0,1023})?")


class ServiceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How the program of a service is reached, and how long it runs."""

    port: int = 0
    """The TCP port that the program listens on, at 127.0.0.1 or 0.0.0.0 of its own network. With the host's network there is
    none to set: each start gets a free port of the host in the variable PORT."""
    ready_path: str = ""
    """The program is ready when a GET of this path has a status below 400; empty: when the port takes a connection."""
    health_path: str = ""
    """The program is started anew when three GETs of this path in a row fail or have a status of 400 or above; empty: none is
    sent."""
    health_s: float = 10.0
    """How often the health path is asked for, and how long an answer may take, in seconds."""
    min: int = 0
    """1: the program always runs. 0: it is started by the first connection."""
    idle_s: float = 300.0
    """With `min = 0`: the program is stopped when it has had no connection for so long, in seconds."""
    drain_s: float = 30.0
    """How long connections of the version before may go on after a deploy, in seconds."""
    stop_s: float = 5.0
    """How long the program may take to end after SIGTERM, in seconds; then it is killed."""
    connections: int = 1000
    """Connections that are open at once; beyond, 429."""
    publish: int = 0
    """The port of the host, 1024 or higher, at which any protocol over TCP reaches the program; 0: none."""
    publish_on: tuple[str, ...] = ()
    """The addresses of the host with that port: of IPv4 or IPv6, and among the worker's `network.publish_on`; empty: its
    loopback addresses."""

    def check(self, *, shares_ports: bool) -> None:
        """Check all values. Args: shares_ports: whether its network is the host's.

        Raises: BadFunctionConfig for the first value that is out of its bounds."""
        check_bounds(self, SERVICE_BOUNDS, "service.")
        if shares_ports and self.port:
            raise BadFunctionConfig(
                f'service.port = {self.port}: with network = "host" the program listens on the free port of the host that the '
                "variable PORT names. Remove service.port (service.publish gives clients a fixed one), or set "
                'network = "private" or "none", in which every port is free'
            )
        if not shares_ports and not self.port:
            raise BadFunctionConfig("service.port: must be set to the port that the program listens on")
        if 0 < self.publish < FIRST_PORT:
            raise BadFunctionConfig(f"service.publish = {self.publish}: must be {FIRST_PORT} or higher")
        for key in ("ready_path", "health_path"):
            if not PATH.fullmatch(getattr(self, key)):
                raise BadFunctionConfig(
                    f"service.{key}: must begin with a slash, and be ASCII without spaces of at most 1024 characters"
                )
        self._check_addresses()

    def addresses(self, allowed: Collection[str]) -> tuple[str, ...]:
        """Where the port is published. Args: allowed: the addresses besides loopback that the worker's configuration names.

        Raises: BadFunctionConfig: at another one."""
        for address in self.publish_on:
            if address not in LOOPBACKS and address not in allowed:
                raise BadFunctionConfig(
                    f"service.publish_on: this worker publishes no port at {address}. Add it to network.publish_on in the "
                    "worker's configuration and restart the worker, or leave the port on loopback and have a proxy of the "
                    "host listen there"
                )
        return self.publish_on or LOOPBACKS

    def _check_addresses(self) -> None:
        """Raises: BadFunctionConfig."""
        if self.publish_on and not self.publish:
            raise BadFunctionConfig("service.publish_on: goes with service.publish, the port that it is about")
        for address in self.publish_on:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise BadFunctionConfig(f"service.publish_on: {address!r:.60} is no address of IPv4 or IPv6") from None
