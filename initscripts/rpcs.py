"""A run's connections and RPCs: asked for by the guest's thread, carried out on the loop.

Owns: the run's connections and the tasks of its RPCs. The guest sends without waiting and waits for one reply at a time. An
RPC is done once: by its reply, its failure, or the run's stop; what the transport does of it later changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from initscripts.app_link import AppLink
from initscripts.errors import CallFailed
from initscripts.limits import Budget
from initscripts.region import Region
from initscripts.report import UNSIGNED, RpcRecord
from initscripts.rpc.base import Connection, Reply, RpcFailed, RpcTiming
from initscripts.signals import LoopCalls, Signal, Waiting
from storage_lib.sockd_initscript import wire

BODIES_LIMIT_BYTES = 8 * 1024 * 1024
"""Request bodies of one run that are held by the engine; a larger one is sent from the region (send_rpc_buf)."""


class Connector(Protocol):
    """Who makes connections: a `rpc.Dialer`, on the loop."""

    def connect(self, address: str) -> Connection:
        """At once, dialling in the background; raises RpcFailed when that address is not to be had."""

    def adopt(self, sock: socket.socket, address: str) -> Connection:
        """Of a socket that is connected; it is the connection's unless this raises RpcFailed."""


class Rpc:
    """One RPC. Written by the loop once it is under way, read by the guest's thread once `done` is set."""

    def __init__(self, number: int, connection: Connection, method: str, body: bytes | memoryview) -> None:
        self.id = number
        self.connection = connection
        self.method = method
        self.body = body
        self.descriptor = [f"{connection.address.partition(':')[0]}.{method}"[:200], connection.address]
        self.queued_ns = time.monotonic_ns()
        self.timing = RpcTiming()
        self.done = Signal()
        self.reply: Reply | None = None
        self.errno = errno.ECANCELED
        self.reason = "cancelled"
        self.is_app_told = False
        """Of the failure."""

    def finish(self, reply: Reply | None, number: int = 0, reason: str = "") -> None:
        """On the loop: this is how it ended. Later endings are ignored."""
        if not self.done.is_set:
            self.reply, self.errno, self.reason = reply, number, reason
            self.body = b""
            self.done.set()

    def record(self) -> RpcRecord:
        """For the report."""
        timing = self.timing
        return RpcRecord(
            id=self.id,
            descriptor=self.descriptor,
            status=-self.errno if self.reply is None else self.reply.status,
            queued_ns=self.queued_ns,
            sent_ns=timing.sent_ns,
            first_byte_ns=timing.first_byte_ns,
            done_ns=timing.done_ns,
            bytes=timing.bytes,
            connection=timing.connection,
            parts=timing.parts,
            reason=self.reason,
        )


class Rpcs:
    """The table of one run."""

    def __init__(
        self, dialer: Connector, region: Region, budget: Budget, link: AppLink, calls: LoopCalls, waiting: Waiting
    ) -> None:
        self._dialer = dialer
        self._region = region
        self._budget = budget
        self._link = link
        self._calls = calls
        self._waiting = waiting
        self._made: set[Connection] = set()
        """The loop's: what is to be closed."""
        self._ahead: dict[str, Connection] = {}
        """Made before they were asked for."""
        self._connections: list[Connection | None] = []
        """The guest's thread's: by number."""
        self._asked: list[str] = []
        self._rpcs: dict[int, Rpc] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # One counter for each thread, so that neither takes a lock: what is held is the difference.
        self._queued_bytes = 0
        self._released_bytes = 0

    # -- the guest's thread

    def connect(self, address: str) -> int:
        """A connection's number; raises CallFailed."""
        if len(self._connections) >= self._budget.connections:
            raise CallFailed(errno.EMFILE)
        self._asked.append(address)
        if address in self._ahead:  # which only this thread takes from
            return self._number(self._ahead.pop(address))
        return self._number(self._ask(self._connect, address))

    def send(self, connection: int, number: int, method: str, body: bytes | memoryview) -> None:
        """Begin an RPC; raises CallFailed. A body of the type `bytes` is a copy that is held here until it is done."""
        found = self._connection(connection)
        number &= UNSIGNED
        if number in self._rpcs:
            raise CallFailed(errno.EEXIST)
        if len(self._rpcs) >= self._budget.rpcs:
            raise CallFailed(errno.EDQUOT)
        held = len(body) if isinstance(body, bytes) else 0
        if held and self._queued_bytes - self._released_bytes + held > BODIES_LIMIT_BYTES:
            raise CallFailed(errno.ENOBUFS)
        self._queued_bytes += held
        rpc = self._rpcs[number] = Rpc(number, found, method, body)
        self._calls.post(self._begin, rpc)

    def receive(self, connection: int, number: int) -> Rpc:
        """Wait for an RPC to end; raises CallFailed as it failed, and tells the app so."""
        found = self._connection(connection)
        rpc = self._rpcs.get(number & UNSIGNED)
        if rpc is None or rpc.connection is not found:
            raise CallFailed(errno.ENOENT)
        self._waiting.wait_for(rpc.done)
        if rpc.reply is None:
            self._tell_failure(rpc)
            raise CallFailed(rpc.errno)
        return rpc

    def transfer(self, number: int, address: str, connection: int) -> None:
        """Give a connection without RPCs under way to the app; raises CallFailed. It cannot be used any more then."""
        found = self._connection(connection)
        if any(rpc.connection is found and not rpc.done.is_set for rpc in self._rpcs.values()):
            raise CallFailed(errno.EBUSY)
        transfer = _Transfer(number & UNSIGNED, address or found.address, found)
        self._calls.post(self._begin_transfer, transfer)
        self._waiting.wait_for(transfer.done)
        if transfer.errno:
            raise CallFailed(transfer.errno)
        self._connections[connection] = None

    def adopt(self, sock: socket.socket, address: str) -> int:
        """A connection's number for a socket of the app's, which is ours from now on; raises CallFailed."""
        if len(self._connections) >= self._budget.connections:
            sock.close()
            raise CallFailed(errno.EMFILE)
        return self._number(self._ask(self._adopt, sock, address))

    @property
    def addresses(self) -> list[str]:
        """What the guest connected to, in that order; once it has ended."""
        return list(dict.fromkeys(self._asked))

    # -- the loop

    def connect_ahead(self, addresses: Iterable[str]) -> None:
        """Connect to where earlier guests of the function did: this one will most likely ask for the same, and then need
        not wait for the loop, nor a first RPC for the dialling."""
        for address in addresses:
            try:
                self._ahead[address] = self._connect(address)
            except RpcFailed:  # which the guest hears when it asks
                continue

    def stop(self) -> None:
        """End all RPCs that are under way."""
        for rpc in list(self._rpcs.values()):
            rpc.finish(None, errno.ECANCELED, "cancelled")
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """After `stop`: wait for the transports to let go, and give the connections up."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self._made:
            connection.close()
        self._made.clear()

    def records(self) -> list[RpcRecord]:
        """For the report."""
        return [rpc.record() for rpc in self._rpcs.values()]

    # --

    def _connection(self, number: int) -> Connection:
        found = self._connections[number] if 0 <= number < len(self._connections) else None
        if found is None:
            raise CallFailed(errno.EBADF)
        return found

    def _number(self, connection: Connection) -> int:
        self._connections.append(connection)
        return len(self._connections) - 1

    def _ask(self, function: Callable[..., Connection], *args: Any) -> Connection:
        try:
            answer: Connection = self._calls.ask(self._waiting, function, *args)
        except RpcFailed as error:
            raise CallFailed(error.errno) from None
        return answer

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

    def _begin(self, rpc: Rpc) -> None:
        if self._waiting.is_stopped:
            rpc.finish(None, errno.ECANCELED, "cancelled")
            return
        self._start(self._carry_out(rpc))

    async def _carry_out(self, rpc: Rpc) -> None:
        body = rpc.body
        # The app is told after the request has been written: that is when the call first waits, or ends.
        asyncio.get_running_loop().call_soon(self._announce, rpc, body)
        try:
            reply = await rpc.connection.call(rpc.method, body, self._region, rpc.timing)
        except RpcFailed as error:
            rpc.finish(None, error.errno, str(error))
        except Exception as error:
            rpc.finish(None, errno.EPROTO, f"bug: {type(error).__name__}: {error}")
            raise
        else:
            rpc.finish(reply)
        finally:
            if isinstance(body, bytes):
                self._released_bytes += len(body)

    def _announce(self, rpc: Rpc, body: bytes | memoryview) -> None:
        try:
            rpc.descriptor = rpc.connection.descriptor(rpc.method, body)
            self._link.send({"op": "sent", "id": rpc.id, "rpc": rpc.descriptor})
        except (
            RpcFailed,
            ValueError,
            wire.WireError,
        ):  # the RPC itself fails for it, or its name is too long to be told
            return

    def _tell_failure(self, rpc: Rpc) -> None:
        if not rpc.is_app_told:
            rpc.is_app_told = True
            message = {"op": "failed", "id": rpc.id, "rpc": rpc.descriptor, "reason": rpc.reason[:200]}
            try:
                self._link.send(message)
            except wire.WireError:
                return

    def _begin_transfer(self, transfer: _Transfer) -> None:
        self._start(self._carry_out_transfer(transfer))

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

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Transfer(msgspec.Struct):
    id: int
    address: str
    connection: Connection
    done: Signal = msgspec.field(default_factory=Signal)
    errno: int = errno.ECANCELED
