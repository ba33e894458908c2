"""Addresses for endpoints: walked through a network in order, so that none is used again before all the others were.

Owns which are in use. What a kernel remembers of an address (connections that ended, routes' metrics) is gone when it comes
round.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from sockd.base.errors import NoCapacity


class Addresses:
    """`take` one, `give_back` it."""

    def __init__(self, network: IPv4Network) -> None:
        self._first = int(network.network_address)
        self._count = network.num_addresses
        self._next = 0
        self._used: set[int] = set()

    @property
    def in_use(self) -> int:
        return len(self._used)

    def take(self) -> str:
        """The next one that is free. Raises: NoCapacity: all are in use."""
        if len(self._used) >= self._count - 2:  # the first and the last are no host's
            raise NoCapacity(f"all {self._count - 2} addresses of private networks are in use (network.range)")
        while True:
            self._next = self._next % (self._count - 2) + 1
            if self._next not in self._used:
                self._used.add(self._next)
                return str(IPv4Address(self._first + self._next))

    def give_back(self, address: str) -> None:
        """The address' endpoint is gone."""
        self._used.discard(int(IPv4Address(address)) - self._first)
