"""HostAddresses: the IPv4 addresses of the host, which no private network reaches, in a set of the router's table.

Owns a netlink socket that receives the kernel's notices of addresses (RTNLGRP_IPV4_IFADDR). The router refuses these addresses
itself, before the host translates them: a port that the host publishes (Docker's, by destination NAT) is judged by the address
that the function named, and a flush of the host's nftables changes nothing. An address that has just been added is refused by
the host's own table (`ruleset.host`) until the notice is read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from sockd.linux.network import netlink, rtnetlink
from sockd.linux.network.own_addresses import own_addresses

Change = Callable[[Collection[str], Collection[str]], object]
"""Adds the first addresses to the set and removes the second ones."""
_RECEIVE_BYTES = 1 << 16
_PROC_NET = Path("/proc/thread-self/net")
_log = logging.getLogger(__name__)


class HostAddresses:
    """Open in the host's namespace with `open`; keep the set up to date between `watch` and `close`."""

    def __init__(self, events: socket.socket, change: Change) -> None:
        self._events = events
        self._change = change
        self._known: set[str] = set()

    @classmethod
    def open(cls, change: Change) -> HostAddresses:
        """Put the addresses of the calling thread's namespace into the set. Raises: OSError."""
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, netlink.ROUTE)
        try:
            events.bind((0, rtnetlink.IPV4_ADDRESS_EVENTS))
            addresses = cls(events, change)
            addresses._update()
            return addresses
        except BaseException:
            events.close()
            raise

    def watch(self) -> None:
        """Keep the set up to date from now on."""
        asyncio.get_running_loop().add_reader(self._events, self._on_events)

    def close(self) -> None:
        """Keep it up to date no more. Safe to call twice."""
        if self._events.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._events)
            self._events.close()

    def _on_events(self) -> None:
        self._discard_events()
        try:
            self._update()
        except OSError as error:
            _log.error("private networks do not know the host's addresses any more: %s", error)

    def _discard_events(self) -> None:
        """Read all notices. What they say is read from the kernel afterwards, because some may have been lost."""
        while True:
            try:
                self._events.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def _update(self) -> None:
        now = ipv4_addresses()
        self._change(now - self._known, self._known - now)
        self._known = now


def ipv4_addresses() -> set[str]:
    """Return the addresses of IPv4 that the calling thread's namespace has, without loopback. Raises: OSError."""
    found = own_addresses(_PROC_NET)
    return {str(each.network_address) for each in found if each.version == 4 and each.prefixlen == each.max_prefixlen}
