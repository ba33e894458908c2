"""The table in the host's namespace, put back when another program removes it, as `nft flush ruleset` of a firewall's rules does.

Without it functions would reach what the host itself serves. The kernel tells of every change of nftables by a multicast group
(NFNLGRP_NFTABLES), so that the table is back within milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from sockd.isolation.networks.namespace_thread import apply_rules, listed
from sockd.linux.network import netlink, nfnetlink

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_RECEIVE_BYTES = 1 << 16
_log = logging.getLogger(__name__)


class HostRules:
    """`open` in the host's namespace; `watch` and `unwatch` on the event loop."""

    def __init__(self, table: str, rules: str, events: socket.socket, cut: Callable[[], object]) -> None:
        self._table = table
        self._rules = rules
        self._wanted = listed(table)
        self._events = events
        self._cut = cut
        self._restoring: asyncio.Task[None] | None = None
        self.restored = 0
        """How often they were put back."""

    @classmethod
    def open(cls, table: str, rules: str, cut: Callable[[], object]) -> HostRules:
        """Apply them. Args: rules: make the table anew; cut: called if they cannot be put back: nothing may pass then.

        Raises: OSError."""
        apply_rules(rules)
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, netlink.NETFILTER)
        try:
            events.bind((0, 0))
            events.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, nfnetlink.EVENTS)
            return cls(table, rules, events, cut)
        except BaseException:
            events.close()
            raise

    def watch(self) -> None:
        """Put them back from now on."""
        asyncio.get_running_loop().add_reader(self._events, self._on_events)

    async def unwatch(self) -> None:
        """They may go from now on. Safe to call twice."""
        if self._events.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._events)
            self._events.close()
        if self._restoring is not None:
            await asyncio.wait([self._restoring])

    def _on_events(self) -> None:
        if self._is_changed() and self._restoring is None:
            self._restoring = asyncio.get_running_loop().create_task(self._restore())

    def _is_changed(self) -> bool:
        """Read all events; whether one is of this table. Some that were lost may be."""
        is_changed = False
        while True:
            try:
                data = self._events.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return is_changed
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                is_changed = True
            else:
                is_changed |= any(
                    nfnetlink.takes_away(kind, body, self._table) for kind, _, body in netlink.split(data)
                )

    async def _restore(self) -> None:
        try:
            if await asyncio.to_thread(self._put_back):
                self.restored += 1
                _log.warning("the rules of private networks in table ip %s were removed; they are back", self._table)
        except OSError as error:
            _log.error("private networks reach nothing from now on, as their rules cannot be put back: %s", error)
            await asyncio.to_thread(self._cut)
        finally:
            self._restoring = None

    def _put_back(self) -> bool:
        """Whether that was needed. Raises: OSError."""
        if listed(self._table) == self._wanted:
            return False
        apply_rules(self._rules)
        return True
