"""A worker's client of the cache nodes: the distributed cache L2. Blocking, for several threads.

Constant work: each read asks all five nodes of a chunk at once, and the first four stripes make it. A slow, lost or empty node
changes neither the number of requests nor, with one of five, the result. What was joined is verified by the chunk's name.

    a node does not answer       left alone for a time that doubles; its stripe counts as missing
    a node answers late          the answer is read later (`NodePool.take`); if a read has waited for it until its deadline, the
                                 node is left alone, so that others do not wait
    a node joins or leaves       `use_nodes`; reads under way go on, and what moves to it is repaired
    a node has no stripe         the client puts the stripe there, off the path of reads
    a node has a wrong stripe    the combinations of four tell which; it is replaced; a node that repeats this is left alone

Owns the list of nodes with the connections, and one thread that writes.
"""

from __future__ import annotations

import contextlib
import queue
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sockd.images.caches import stripes
from sockd.images.caches.node_connection import NodeConnection, NodePool
from sockd.images.caches.node_http import BadHead, request_head, stripe_path
from sockd.images.caches.node_set import NodeSet
from sockd.images.caches.stripes import DATA_STRIPES, PARITY, STRIPES, BadStripe, RunningDigest, Stripe
from sockd.images.chunks.chunk import CHUNK_BYTES, is_named

DEADLINE_S = 0.1
"""For a read; then the origin is asked."""
WRITE_DEADLINE_S = 2.0
MOST_WAITING_WRITES = 64
"""Beyond these, chunks are not written to the nodes."""
PARITY_PATIENCE = 1.0
"""How long to wait for the last stripe of data when the parity is already there, in times of what computing it takes."""


@dataclass(slots=True)
class L2Counters:
    """Since the start."""

    hits: int = 0
    misses: int = 0
    requests: int = 0
    reconstructed: int = 0
    """Hits that needed the parity."""
    wrong_stripes: int = 0
    failed_requests: int = 0
    """Refused, broken, or not sent because the node is down or all its connections wait."""
    written_stripes: int = 0
    repaired_stripes: int = 0
    dropped_writes: int = 0


@dataclass(slots=True)
class NodeStripe:
    """The stripe of one chunk on one node."""

    pool: NodePool
    path: str
    stripe: Stripe | None = None
    lacks_stripe: bool = False
    """The node answered and has none, or a wrong or superfluous one."""


@dataclass(slots=True)
class _Write:
    """Stripes to put, by their number; the places are in the order of the numbers."""

    chunk: bytes
    stripes: list[tuple[NodeStripe, int]]
    is_repair: bool = False


class L2Client:
    """The cache."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        token: str = "",
        deadline_s: float = DEADLINE_S,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Args:
        nodes: ADDRESS:PORT of each, which is also its name. All workers list the same.
        token: what the nodes were started with.
        deadline_s: for one read.

        Raises: BadConfig: an address that is none."""
        self._token = token
        self._deadline_s = deadline_s
        self._chunk_bytes = chunk_bytes
        self._nodes = NodeSet({}, stripes.framed_bytes(chunk_bytes))
        self._parity_s = 0.0
        self.counters = L2Counters()
        self._counting = threading.Lock()
        self._writes: queue.Queue[_Write | None] = queue.Queue(MOST_WAITING_WRITES)
        self._writer: threading.Thread | None = None
        self._writer_lock = threading.Lock()
        self.use_nodes({node: node for node in nodes})

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        """Use other nodes from now on, while threads read. Args: nodes: as of `NodeSet.change`. Raises: BadConfig."""
        if nodes and not self._parity_s:
            self._parity_s = _time_of_parity(self._chunk_bytes)
        self._nodes.change(nodes)

    def get(self, name: bytes) -> bytes | None:
        """The chunk's ciphertext, verified; None: the nodes do not have four of its stripes, or not in time."""
        slots = self._slots(name)
        if not slots:
            return None
        deadline = time.monotonic() + self._deadline_s
        found: dict[int, Stripe] = {}
        digest = RunningDigest()
        with self._exchange([(slot, (self._head("GET", slot),)) for slot in slots], deadline) as exchange:
            for slot, connection in exchange.answers(lambda: self._patience(found, exchange)):
                self._take(slot, connection, found)
                digest.advance(found)
                if len(found) >= DATA_STRIPES and (PARITY not in found or len(found) == STRIPES):
                    break
            chunk = self._joined(name, found, digest, slots, exchange)
            # What has arrived meanwhile would be read later anyhow, and shows which stripes are missing.
            for slot, connection in exchange.arrived():
                self._take(slot, connection, found)
        if chunk is None:
            self._count(misses=1)
            return None
        self._count(hits=1)
        self._repair(chunk, slots)
        return chunk

    def put_later(self, name: bytes, chunk: bytes) -> None:
        """Write all five stripes from another thread. Dropped if too many wait."""
        slots = self._slots(name)
        if slots:
            self._write_later(_Write(chunk, [(slot, number) for number, slot in enumerate(slots)]))

    def put(self, name: bytes, chunk: bytes) -> int:
        """Write all five stripes; how many nodes took theirs."""
        slots = self._slots(name)
        return self._write(_Write(chunk, [(slot, number) for number, slot in enumerate(slots)]))

    def flush(self) -> None:
        """Returns when all writes that wait now are done."""
        self._writes.join()

    def close(self) -> None:
        """End the writer and close the connections; no other thread is in a call."""
        with self._writer_lock:
            if self._writer is not None:
                self._writes.put(None)
                self._writer.join()
        self._nodes.close()

    # ---- reads

    def _slots(self, name: bytes) -> list[NodeStripe]:
        seen: Counter[NodePool] = Counter()
        slots = []
        for pool in self._nodes.of(name):
            slots.append(NodeStripe(pool, stripe_path(name, seen[pool])))
            seen[pool] += 1
        return slots

    def _head(self, method: str, slot: NodeStripe, body_bytes: int | None = None) -> bytes:
        return request_head(method, slot.path, host=slot.pool.node, token=self._token, body_bytes=body_bytes)

    def _take(self, slot: NodeStripe, connection: NodeConnection, found: dict[int, Stripe]) -> None:
        """Note what a node answered. The stripe lies in the connection's buffer until the exchange ends."""
        if connection.status != 200:
            slot.lacks_stripe = connection.status == 404
            return
        try:
            stripe = stripes.parse(connection.body, max_chunk_bytes=self._chunk_bytes)
        except BadStripe:
            self._accuse(slot)
            return
        if stripe.number in found:
            slot.lacks_stripe = True
            return
        found[stripe.number] = slot.stripe = stripe

    def _patience(self, found: dict[int, Stripe], exchange: _Exchange) -> float | None:
        """How long to wait for another answer. None: until the deadline."""
        if len(found) + exchange.waiting < DATA_STRIPES:
            return 0  # a miss, whatever the slow nodes answer
        return PARITY_PATIENCE * self._parity_s if len(found) == DATA_STRIPES else None

    def _joined(
        self,
        name: bytes,
        found: dict[int, Stripe],
        digest: RunningDigest,
        slots: list[NodeStripe],
        exchange: _Exchange,
    ) -> bytes | None:
        """The chunk, after its verification."""
        if len(found) < DATA_STRIPES:
            return None
        chunk = _join(found)
        if chunk is not None and is_named(name, chunk, blake3_digest=digest.of(chunk)):
            if len(found) == DATA_STRIPES and PARITY in found:
                self._count(reconstructed=1)
            return chunk
        # At least one stripe is wrong. With all five, four of them are right if no more than one is.
        for slot, connection in exchange.answers(lambda: None):
            self._take(slot, connection, found)
        for numbers in combinations(found, DATA_STRIPES):
            chunk = _join({number: found[number] for number in numbers})
            if chunk is not None and is_named(name, chunk):
                for slot in slots:
                    if slot.stripe is not None and slot.stripe.number not in numbers:
                        self._accuse(slot)
                self._count(reconstructed=1)
                return chunk
        return None

    def _accuse(self, slot: NodeStripe) -> None:
        slot.stripe = None
        slot.lacks_stripe = True
        slot.pool.accuse()
        self._count(wrong_stripes=1)

    def _repair(self, chunk: bytes, slots: list[NodeStripe]) -> None:
        """Put the stripes that were missing where one is missing."""
        if not any(slot.lacks_stripe for slot in slots):
            return
        held = {slot.stripe.number for slot in slots if slot.stripe is not None}
        missing = [number for number in range(STRIPES) if number not in held]
        self._write_later(_Write(chunk, list(zip((s for s in slots if s.lacks_stripe), missing, strict=False)), True))

    # ---- writes

    def _write_later(self, write: _Write) -> None:
        with self._writer_lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._run_writes, name="L2 writer", daemon=True)
                self._writer.start()
        try:
            self._writes.put_nowait(write)
        except queue.Full:
            self._count(dropped_writes=1)

    def _run_writes(self) -> None:
        while (write := self._writes.get()) is not None:
            self._write(write)
            self._writes.task_done()
        self._writes.task_done()

    def _write(self, write: _Write) -> int:
        framed = stripes.split(write.chunk)
        requests = [
            (slot, (self._head("PUT", slot, len(framed[number])), framed[number])) for slot, number in write.stripes
        ]
        with self._exchange(requests, time.monotonic() + WRITE_DEADLINE_S) as exchange:
            written = sum(connection.status // 100 == 2 for _, connection in exchange.answers(lambda: None))
        self._count(written_stripes=written, repaired_stripes=written if write.is_repair else 0)
        return written

    # ---- both

    @contextlib.contextmanager
    def _exchange(
        self, requests: Sequence[tuple[NodeStripe, tuple[bytes, ...]]], deadline: float
    ) -> Iterator[_Exchange]:
        """All requests at once. The answers are valid in the block."""
        exchange = _Exchange(deadline)
        try:
            for slot, request in requests:
                exchange.begin(slot, request)
            yield exchange
        finally:
            exchange.end()
            self._count(requests=len(requests), failed_requests=exchange.failed)

    def _count(self, **amounts: int) -> None:
        with self._counting:
            for name, amount in amounts.items():
                setattr(self.counters, name, getattr(self.counters, name) + amount)


class _Exchange:
    """Requests to several nodes that are under way at once, for one thread."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._poll = select.poll()
        self._waiting: dict[int, tuple[NodeStripe, NodeConnection]] = {}
        self._answered: list[tuple[NodeStripe, NodeConnection]] = []
        self.failed = 0

    @property
    def waiting(self) -> int:
        """Answers that are under way."""
        return len(self._waiting)

    def begin(self, slot: NodeStripe, request: tuple[bytes, ...]) -> None:
        """Send a request, if the node has a connection for it."""
        connection = slot.pool.take()
        if connection is None:
            self.failed += 1
            return
        try:
            connection.begin(*request)
        except OSError:
            self._has_failed(slot, connection)
            return
        self._poll.register(connection, connection.events)
        self._waiting[connection.fileno()] = slot, connection

    def answers(self, patience: Callable[[], float | None]) -> Iterator[tuple[NodeStripe, NodeConnection]]:
        """Complete answers as they arrive, until there are no more, or the deadline.

        Args: patience: called before each wait; how long it may last, or None."""
        while self._waiting:
            left = self._deadline - time.monotonic()
            if (limit := patience()) is not None:
                left = min(left, limit)
            if left <= 0:
                return
            ready = self._poll.poll(left * 1000)
            if not ready:
                return
            for fd, _ in ready:
                if self._is_answered(fd):
                    yield self._answered[-1]

    def arrived(self) -> Iterator[tuple[NodeStripe, NodeConnection]]:
        """Answers that are there without waiting."""
        for fd in list(self._waiting):
            if self._is_answered(fd):
                yield self._answered[-1]

    def end(self) -> None:
        """Give all connections back, those with late answers, too."""
        if time.monotonic() >= self._deadline:
            for slot, connection in self._waiting.values():
                slot.pool.was_silent(connection.begun)
        for slot, connection in (*self._answered, *self._waiting.values()):
            if connection.is_sending:  # the rest of the request would have to be sent later
                slot.pool.close_one(connection)
            else:
                slot.pool.give_back(connection)
        self._answered.clear()
        self._waiting.clear()

    def _is_answered(self, fd: int) -> bool:
        slot, connection = self._waiting[fd]
        try:
            is_complete = connection.advance()
        except (OSError, BadHead):
            self._stop_waiting(fd)
            self._has_failed(slot, connection)
            return False
        if not is_complete:
            self._poll.modify(fd, connection.events)
            return False
        self._stop_waiting(fd)
        self._answered.append((slot, connection))
        slot.pool.succeeded()
        return True

    def _stop_waiting(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._waiting[fd]

    def _has_failed(self, slot: NodeStripe, connection: NodeConnection) -> None:
        self.failed += 1
        slot.pool.failed(connection)


def _join(found: dict[int, Stripe]) -> bytes | None:
    try:
        return stripes.join(found)
    except BadStripe:
        return None


def _time_of_parity(chunk_bytes: int) -> float:
    parts = [bytes(stripes.stripe_bytes(chunk_bytes))] * DATA_STRIPES
    stripes.xor()(parts)
    begun = time.monotonic()
    stripes.xor()(parts)
    return time.monotonic() - begun
