"""A run's connections: numbers for the guest's thread, made and closed on the loop.

Owns: the connections, until they are given away. What is open and idle when they are closed goes back to the engine's pool.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.signals import LoopCalls, Signal, Waiting
from sockd_initscripts.errors import CallFailed
from sockd_initscripts.limits import Budget
from sockd_initscripts.report import UNSIGNED
from sockd_initscripts.rpc.base import Connection, RpcFailed

MOST_REFUSALS = 20
"""Refused addresses that are reported."""


class Connector(Protocol):
    """Who makes connections: a `rpc.Dialer`, on the loop."""

    def reserve(self, address: str) -> Connection | None:
        """In any thread: one with an open connection that was kept; None: ask `connect`."""

    def connect(self, address: str) -> Connection:
        """At once, dialling in the background; raises RpcFailed when that address is not to be had."""

    def adopt(self, sock: socket.socket, address: str) -> Connection:
        """Make a connection of a socket that is connected; it owns the socket unless this raises RpcFailed."""


class Connections:
    """The connections of one run."""

    def __init__(self, dialer: Connector, budget: Budget, link: AppLink, calls: LoopCalls, waiting: Waiting) -> None:
        self._dialer = dialer
        self._budget = budget
        self._link = link
        self._calls = calls
        self._waiting = waiting
        self._made: set[Connection] = set()
        """The loop's, once there is a guest: what is to be closed."""
        self._ahead: dict[str, Connection] = {}
        """Made before they were asked for."""
        self._numbered: list[Connection | None] = []
        """The guest's thread's."""
        self._asked: list[str] = []
        self.refusals: list[str] = []
        """The addresses that the guest could not have, each with the reason."""
        self._transferring: asyncio.Task[None] | None = None

    # -- the guest's thread

    def get(self, number: int) -> Connection:
        """Raises CallFailed(EBADF)."""
        found = self._numbered[number] if 0 <= number < len(self._numbered) else None
        if found is None:
            raise CallFailed(errno.EBADF)
        return found

    def connect(self, address: str) -> int:
        """A connection's number; raises CallFailed."""
        if len(self._numbered) >= self._budget.connections:
            raise CallFailed(errno.EMFILE)
        self._asked.append(address)
        if address in self._ahead:  # which only this thread takes from, or what it waits for
            return self._number(self._ahead.pop(address))
        try:
            return self._number(self._ask(self._connect_asked, address))
        except RpcFailed as error:
            if len(self.refusals) < MOST_REFUSALS:
                self.refusals.append(f"connect {address}: {error}")
            raise CallFailed(error.errno) from None

    def transfer(self, number: int, address: str, connection: int) -> None:
        """Give a connection that has nothing under way to the app, and its number up; raises CallFailed."""
        found = self.get(connection)
        transfer = _Transfer(number & UNSIGNED, address or found.address, found)
        self._calls.post(self._begin_transfer, transfer)
        self._waiting.wait_for(transfer.done)
        if transfer.errno:
            raise CallFailed(transfer.errno)
        self._numbered[connection] = None

    def adopt(self, sock: socket.socket, address: str) -> int:
        """A connection's number for a socket of the app's, which is ours from now on; raises CallFailed."""
        if len(self._numbered) >= self._budget.connections:
            sock.close()
            raise CallFailed(errno.EMFILE)
        try:
            return self._number(self._ask(self._adopt, sock, address))
        except RpcFailed as error:
            raise CallFailed(error.errno) from None

    @property
    def addresses(self) -> list[str]:
        """What the guest connected to, in that order; once it has ended."""
        return list(dict.fromkeys(self._asked))

    def connect_ahead(self, addresses: Iterable[str]) -> None:
        """Before there is a guest: connect to where earlier guests of the function did. This one will most likely ask for the
        same, and then need not wait for the loop, nor a first RPC for the dialling."""
        missing = []
        for address in addresses:
            kept = self._dialer.reserve(address)
            if kept is None:
                missing.append(address)
            else:
                self._made.add(kept)
                self._ahead[address] = kept
        if missing:
            self._calls.post(self._dial_ahead, missing)

    # -- the loop

    async def close(self) -> None:
        """Give them up, when no RPC is under way any more."""
        if self._transferring is not None:
            self._transferring.cancel()
            await asyncio.wait([self._transferring])
        for connection in self._made:
            connection.close()
        self._made.clear()

    # --

    def _number(self, connection: Connection) -> int:
        self._numbered.append(connection)
        return len(self._numbered) - 1

    def _ask(self, function: Callable[..., Connection], *args: Any) -> Connection:
        """Raises: RpcFailed, CallFailed."""
        answer: Connection = self._calls.ask(self._waiting, function, *args)
        return answer

    def _dial_ahead(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if self._waiting.is_stopped:
                return
            try:
                self._ahead[address] = self._connect(address)
            except RpcFailed:  # which the guest hears when it asks
                continue

    def _connect_asked(self, address: str) -> Connection:
        return self._ahead.pop(address, None) or self._connect(address)

    def _connect(self, address: str) -> Connection:
        connection = self._dialer.connect(address)
        self._made.add(connection)
        return connection

    def _adopt(self, sock: socket.socket, address: str) -> Connection:
        try:
            connection = self._dialer.adopt(sock, address)
        except BaseException:
            sock.close()
            raise
        self._made.add(connection)
        return connection

    def _begin_transfer(self, transfer: _Transfer) -> None:
        if not self._waiting.is_stopped:
            self._transferring = asyncio.get_running_loop().create_task(self._carry_out_transfer(transfer))

    async def _carry_out_transfer(self, transfer: _Transfer) -> None:
        try:
            sock, kind = await transfer.connection.detach()
        except RpcFailed as error:
            transfer.errno = error.errno
        else:
            authority = transfer.connection.address.rpartition("://")[2]
            name = authority.rpartition(":")[0] or authority
            message = {"op": "connection", "id": transfer.id, "addr": transfer.address, "kind": kind}
            message["tls_server_name"] = name if kind == "relay" else None
            self._made.discard(transfer.connection)
            transfer.errno = 0 if self._link.send(message, sock.detach()) else errno.EPIPE
        finally:
            transfer.done.set()


class _Transfer(msgspec.Struct):
    id: int
    address: str
    connection: Connection
    done: Signal = msgspec.field(default_factory=Signal)
    errno: int = errno.ECANCELED
