"""A run's RPCs: asked for by the guest's thread, begun there if a connection is reserved, and carried out on the loop.

Owns: the tasks of the RPCs. The guest sends without waiting and waits for one reply at a time. An RPC is done once: by its
reply, its failure, or the run's stop; what the transport does of it later changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Coroutine, Generator
from typing import Any

from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.connections import Connections
from sockd_initscripts.engine.signals import LoopCalls, Signal, Waiting
from sockd_initscripts.errors import CallFailed
from sockd_initscripts.limits import Budget
from sockd_initscripts.region import Region
from sockd_initscripts.report import UNSIGNED, RpcRecord
from sockd_initscripts.rpc.base import Connection, Reply, RpcFailed, RpcTiming
from sockd_storage_lib.sockd_initscript import wire

BODIES_LIMIT_BYTES = 8 * 1024 * 1024
"""Request bodies of one run that are held by the engine; a larger one is sent from the region (send_rpc_buf)."""

KNOWN = 304
"""The status of a reply without a body that stands for one that the function has: HTTP's Not Modified."""
DESCRIPTOR_LIMIT = 4096
"""Characters: what an RPC asked for is kept for the report, and a DynamoDB request's name is its whole body."""


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
        self.is_announced = False
        """To the app; the loop's."""
        self.app_is_notified = False
        """Whether the app was notified of the failure."""
        self._call: Coroutine[Any, Any, Reply] | None = None
        """If it has begun in the guest's thread; or how it failed there."""
        self._failure: Exception | None = None

    def begin(self, region: Region) -> None:
        """In the guest's thread: as much of the call as needs no loop, which is that the request is written."""
        self._call = self.connection.call(self.method, self.body, region, self.timing)
        try:
            self._call.send(None)
        except Exception as error:
            self._failure = error

    @property
    def has_begun(self) -> bool:
        """In the guest's thread."""
        return self._call is not None

    async def call(self, region: Region) -> Reply:
        """On the loop: all of the call, or the rest of it. Raises what it raises."""
        if self._failure is not None:
            raise self._failure
        if self._call is None:
            return await self.connection.call(self.method, self.body, region, self.timing)
        return await _Begun(self._call)

    def drop(self) -> None:
        """On the loop, after `call` or instead of it."""
        if self._call is not None:
            self._call.close()

    def finish(self, reply: Reply | None, number: int = 0, reason: str = "") -> None:
        """On the loop, or before it is there: this is how it ended. Later endings are ignored."""
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


class _Begun:
    """A coroutine that has made its first step: `await` takes none that waits already."""

    def __init__(self, coroutine: Coroutine[Any, Any, Reply]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Reply]:
        return (yield from self._coroutine.__await__())


class Rpcs:
    """The RPCs of one run."""

    def __init__(
        self,
        connections: Connections,
        region: Region,
        budget: Budget,
        link: AppLink,
        calls: LoopCalls,
        waiting: Waiting,
        known: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        """Args: known: descriptors of RPCs that are not sent, each as often as it is there: the function has the replies."""
        self._connections = connections
        self._region = region
        self._budget = budget
        self._link = link
        self._calls = calls
        self._waiting = waiting
        self._known = Counter(known)
        self._rpcs: dict[int, Rpc] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # One counter for each thread, so that neither takes a lock: what is held is the difference.
        self._queued_bytes = 0
        self._released_bytes = 0

    # -- the guest's thread

    def send(self, connection: int, number: int, method: str, body: bytes | memoryview) -> None:
        """Begin an RPC; raises CallFailed. A body of the type `bytes` is a copy that is held here until it is done."""
        found = self._connections.get(connection)
        number &= UNSIGNED
        if number in self._rpcs:
            raise CallFailed(errno.EEXIST)
        if len(self._rpcs) >= self._budget.rpcs:
            raise CallFailed(errno.EDQUOT)
        held = len(body) if isinstance(body, bytes) else 0
        if held and self._queued_bytes - self._released_bytes + held > BODIES_LIMIT_BYTES:
            raise CallFailed(errno.ENOBUFS)
        rpc = self._rpcs[number] = Rpc(number, found, method, body)
        if self._known and self._is_known(rpc):
            rpc.finish(Reply(KNOWN, None))
            return
        self._queued_bytes += held
        if found.is_reserved:
            rpc.begin(self._region)
        self._calls.post(self._begin, rpc)

    def _is_known(self, rpc: Rpc) -> bool:
        """Whether the function has the reply to an RPC; counts it then."""
        try:
            descriptor = rpc.connection.descriptor(rpc.method, rpc.body)
        except RpcFailed:  # it fails for that when it is sent
            return False
        if not self._known[tuple(descriptor)]:
            return False
        self._known[tuple(descriptor)] -= 1
        rpc.descriptor = descriptor
        return True

    def is_under_way_on(self, connection: int) -> bool:
        """Whether an RPC is under way on a connection; raises CallFailed(EBADF)."""
        found = self._connections.get(connection)
        return any(rpc.connection is found and not rpc.done.is_set for rpc in self._rpcs.values())

    def receive(self, connection: int, number: int) -> Rpc:
        """Wait for an RPC to end; raises CallFailed as it failed, and tells the app so."""
        found = self._connections.get(connection)
        rpc = self._rpcs.get(number & UNSIGNED)
        if rpc is None or rpc.connection is not found:
            raise CallFailed(errno.ENOENT)
        self._waiting.wait_for(rpc.done)
        if rpc.reply is None:
            self._tell_failure(rpc)
            raise CallFailed(rpc.errno)
        return rpc

    # -- the loop

    def stop(self) -> None:
        """End all RPCs that are under way."""
        for rpc in list(self._rpcs.values()):
            rpc.finish(None, errno.ECANCELED, "cancelled")
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """After `stop`: wait for the transports to let go."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def records(self) -> list[RpcRecord]:
        """For the report."""
        return [rpc.record() for rpc in self._rpcs.values()]

    # --

    def _begin(self, rpc: Rpc) -> None:
        if self._waiting.is_stopped:
            rpc.drop()
            rpc.finish(None, errno.ECANCELED, "cancelled")
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(rpc))
        self._tasks.add(task)
        task.add_done_callback(
            lambda _: rpc.drop()
        )  # of a task that is cancelled before its first step, nothing else would
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, rpc: Rpc) -> None:
        body = rpc.body
        # The app gets the message after the request has been written: that is when the call first waits, or ends.
        if rpc.has_begun:
            self._announce(
                rpc, body
            )  # at once: the reply may be there already, and goes by the name that this gives it
        else:
            asyncio.get_running_loop().call_soon(self._announce, rpc, body)
        try:
            reply = await rpc.call(self._region)
        except RpcFailed as error:
            self._announce(rpc, body)  # it may have failed at once; its failure is sent after it
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
        if rpc.is_announced:
            return
        rpc.is_announced = True
        try:
            descriptor = rpc.connection.descriptor(rpc.method, body)
            if sum(map(len, descriptor)) > DESCRIPTOR_LIMIT:
                return  # it keeps the name that it has, which is nothing that an app reads
            rpc.descriptor = descriptor
            self._link.send({"op": "sent", "id": rpc.id, "rpc": rpc.descriptor})
        except (RpcFailed, ValueError, wire.WireError):
            # The RPC fails for it, too; or its name is too long to be sent.
            return

    def _tell_failure(self, rpc: Rpc) -> None:
        if not rpc.app_is_notified:
            rpc.app_is_notified = True
            message = {"op": "failed", "id": rpc.id, "rpc": rpc.descriptor, "reason": rpc.reason[:200]}
            try:
                self._link.send(message)
            except wire.WireError:
                return
