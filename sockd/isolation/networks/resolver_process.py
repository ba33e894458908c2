"""The resolver's process: answers functions' DNS queries. Exec'd unprivileged, with nothing of the host but its network.

    python -m sockd.isolation.networks.resolver_process WIRE_FD DNS_FD NAMESERVER...

It parses what functions and nameservers send, and decides nothing: of each name it asks the daemon whether its function may
resolve it, and it answers with what the daemon has opened. On the wire are objects of JSON, one a message:

    {"id", "source", "name"}                          -> {"id", "may", "relay", "rules"}
    {"id", "source", "name", "addresses", "ttl_s"}    -> {"id", "code", "addresses", "ttl_s"}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from sockd.base.single_flight import SingleFlight
from sockd.isolation.networks import dns
from sockd.isolation.networks.lookups import Lookups
from sockd.isolation.networks.nameservers import Nameservers
from sockd.isolation.networks.query_shares import QueryShares
from sockd.linux.network.resolv_conf import PRIVATE_NAMESERVER

MOST_READ = 64
"""Queries that are read before nameservers and the daemon are heard again."""
MOST_QUERY_BYTES = 1232
"""One question with its options is shorter (EDNS0); what is longer is cut."""
DAEMON_S = 5.0
"""How long the daemon may take. It drops a reply if the wire is full."""
_MESSAGE_BYTES = 1 << 16
_NEVER_FORWARDED = (dns.SVCB, dns.HTTPS)
"""Kinds of records that lead to addresses which no rule opens."""
HOST_TTL_S = 3600
_GATEWAY = IPv4Address(PRIVATE_NAMESERVER)
_FAILED = dns.Addresses([], 0, dns.SERVER_FAILURE)


class ResolverProcess:
    """Both sockets; it ends with the wire."""

    def __init__(self, wire: socket.socket, queries: socket.socket, nameservers: Sequence[str]) -> None:
        self._wire = wire
        self._queries = queries
        self._nameservers = Nameservers(nameservers)
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asking = asyncio.Lock()
        self._lookups = Lookups(self._look_up)
        self._asking_nameservers: SingleFlight[tuple[str, int], bytes | None] = SingleFlight()
        self._number = 0
        self._shares = QueryShares()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Answer until the daemon closes the wire."""
        self._loop.add_reader(self._wire, self._opened)
        self._loop.add_reader(self._queries, self._received)
        await self._ended.wait()

    def _opened(self) -> None:
        """The daemon has opened what was asked for, or refused it."""
        data = self._wire.recv(_MESSAGE_BYTES)
        if not data:
            self._ended.set()
            return
        reply = json.loads(data)
        future = self._asked.pop(reply["id"], None)
        if future is not None and not future.done():
            future.set_result(reply)

    def _received(self) -> None:
        for _ in range(MOST_READ):
            try:
                message, peer = self._queries.recvfrom(MOST_QUERY_BYTES)
            except BlockingIOError:
                return
            except OSError:  # an error of a datagram that was sent, to a sandbox that is gone
                continue
            self._begin(message, peer)

    def _begin(self, message: bytes, peer: tuple[str, int]) -> None:
        source = peer[0]
        if not self._shares.take(source):  # before anything is parsed: a flood costs little
            return
        try:
            asked = dns.question(message)
        except dns.BadMessage:
            self._shares.release(source)
            return
        task = self._loop.create_task(self._answer(asked, peer))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._answered(done, source))

    def _answered(self, task: asyncio.Task[None], source: str) -> None:
        self._tasks.discard(task)
        self._shares.release(source)

    async def _answer(self, asked: dns.Question, peer: tuple[str, int]) -> None:
        reply = await self._reply(asked, peer[0])
        with contextlib.suppress(OSError):  # the sandbox is gone
            self._queries.sendto(reply, peer)

    async def _reply(self, asked: dns.Question, source: str) -> bytes:
        try:
            permission = await self._ask({"source": source, "name": asked.name})
        except TimeoutError:
            return dns.answer(asked, _FAILED)
        if not permission["may"]:
            return dns.answer(asked, dns.Addresses([], 0, dns.NO_SUCH_NAME))
        if asked.name == dns.HOST_NAME:
            return dns.answer(asked, dns.Addresses([_GATEWAY] if asked.kind == dns.A else [], HOST_TTL_S))
        if asked.kind == dns.A:
            return dns.answer(asked, await self._lookups.addresses(source, asked.name, permission["rules"]))
        if asked.kind == dns.AAAA:
            return dns.answer(
                asked, dns.Addresses([], 0, await self._lookups.code(source, asked.name, permission["rules"]))
            )
        if asked.kind in _NEVER_FORWARDED or not permission["relay"]:
            return dns.answer(asked, dns.Addresses([], 0))
        return await self._forward(asked)

    async def _look_up(self, source: str, name: str) -> dns.Addresses:
        """The addresses of a name that the source may ask for; they are open when this returns."""
        message = await self._ask_nameservers(name, dns.A)
        if message is None:
            return _FAILED
        try:
            found = dns.addresses(message)
            if not found.addresses:
                return found
            result = {"addresses": [str(each) for each in found.addresses], "ttl_s": found.ttl_s}
            opened = await self._ask({"source": source, "name": name, **result})
        except (dns.BadMessage, TimeoutError):
            return _FAILED
        return dns.Addresses([IPv4Address(each) for each in opened["addresses"]], opened["ttl_s"], opened["code"])

    async def _forward(self, asked: dns.Question) -> bytes:
        """One datagram, whatever size the client announced: nothing answers TCP here, and no hop between drops fragments."""
        message = await self._ask_nameservers(asked.name, asked.kind)
        return dns.answer(asked, _FAILED) if message is None else asked.number.to_bytes(2) + message[2:]

    async def _ask_nameservers(self, name: str, kind: int) -> bytes | None:
        """Their answer; however many functions wait for it, one query is under way."""
        return await self._asking_nameservers.do((name, kind), partial(self._nameservers.ask, name, kind))

    async def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """The daemon's reply. Raises: TimeoutError."""
        self._number += 1
        number = self._number
        reply: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[number] = reply
        try:
            async with asyncio.timeout(DAEMON_S):
                async with (
                    self._asking
                ):  # a second writer that waits for the wire would replace the first one's callback
                    await self._loop.sock_sendall(self._wire, json.dumps({"id": number, **what}).encode())
                return await reply
        finally:
            self._asked.pop(number, None)


async def main() -> None:
    """Answer until the wire ends."""
    os.nice(5)  # requests come first
    wire, queries = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    for each in (wire, queries):
        each.setblocking(False)
    await ResolverProcess(wire, queries, sys.argv[3:]).run()


if __name__ == "__main__":
    asyncio.run(main())
