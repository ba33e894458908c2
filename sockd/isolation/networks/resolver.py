"""Resolver: DNS for private networks, as the daemon knows it: a confined process that answers, and what it may answer.

Owns the process, the wire to it, and the socket that functions send their queries to. The process asks; here it is decided, by
the rules of the function that an address belongs to, and addresses are opened before they are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from sockd.isolation.networks import dns
from sockd.isolation.networks.policy import Policy
from sockd.isolation.networks.query_shares import MOST_QUERIES
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.confined.kept_process import KeptProcess
from sockd.linux.confined.software import Places, software

MODULE = "sockd.isolation.networks.resolver_process"
MEMORY_BYTES, TMP_BYTES, PIDS = 64 << 20, 1 << 20, 4
LEAST_TTL_S, MOST_TTL_S = 5, 3600
"""An address is open for so long at least, and is asked for again after so long at most."""
GRACE_S = 2
"""How much longer an address is open than its name is remembered for."""
MOST_MESSAGE_BYTES = 1 << 16
QUERIES_BUFFER_BYTES = 4 << 20
"""For queries that wait, as the kernel counts them: 768 bytes or more for each. Its default has room for 277."""
REPLIES_BUFFER_BYTES = 1 << 20
"""For replies on the wire that wait: one for each query that may be under way (`query_shares.MOST_QUERIES`)."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
"""socket(7), asm-generic/socket.h: sizes beyond net.core.wmem_max and rmem_max."""
_log = logging.getLogger(__name__)


class Resolver:
    """`start`, `aclose`. A process that ends is started again."""

    def __init__(
        self,
        jail: Jail,
        uid: int,
        queries: socket.socket,
        nameservers: Sequence[str],
        policy_of: Callable[[str], Policy | None],
        never: Sequence[IPv4Network],
    ) -> None:
        """Args:
        queries: bound to the gateway's address, owned from now on; nameservers: who is asked.
        policy_of: the rules of an endpoint's address; never: networks that no answer may lead to."""
        self._jail = jail
        self._uid = uid
        self._queries = queries
        _enlarge(queries, socket.SO_RCVBUF, _SO_RCVBUFFORCE, QUERIES_BUFFER_BYTES)
        self._nameservers = nameservers
        self._policy_of = policy_of
        self._never = never
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self.answered = 0
        """Names that were opened."""
        self._kept = KeptProcess("the resolver of private networks", self._running)

    async def aclose(self) -> None:
        """End the process."""
        await self._kept.aclose()
        self._queries.close()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[ConfinedProcess]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with ours:
            _enlarge(ours, socket.SO_SNDBUF, _SO_SNDBUFFORCE, REPLIES_BUFFER_BYTES)
            with theirs:
                arguments = [str(theirs.fileno()), str(self._queries.fileno()), *self._nameservers]
                process = await ConfinedProcess.start(
                    self._jail,
                    *("-m", MODULE, *arguments),
                    uid=self._uid,
                    memory_bytes=MEMORY_BYTES,
                    tmp_bytes=TMP_BYTES,
                    pids=PIDS,
                    network="host",
                    keep=(theirs.fileno(), self._queries.fileno()),
                )
            self._loop.add_reader(ours, self._asked, ours)
            try:
                yield process
            finally:
                self._loop.remove_reader(ours)
                if self._opening:
                    await asyncio.wait(self._opening)

    def _asked(self, wire: socket.socket) -> None:
        try:
            data = wire.recv(MOST_MESSAGE_BYTES)
            if not data:
                self._loop.remove_reader(wire)
                return
            what = json.loads(data)
            if "addresses" not in what:
                self._tell(wire, self._permission(what))
            elif len(self._opening) < MOST_QUERIES:
                opening = self._loop.create_task(self._open(wire, what))
                self._opening.add(opening)
                opening.add_done_callback(self._opening.discard)
        except BlockingIOError:
            return
        except (OSError, *_BAD) as error:
            _log.error(_UNKNOWN, error)

    def _tell(self, wire: socket.socket, reply: dict[str, Any]) -> None:
        with contextlib.suppress(BlockingIOError):  # it does not read; what it asked is asked again by the function
            wire.send(json.dumps(reply).encode())

    def _permission(self, what: dict[str, Any]) -> dict[str, Any]:
        policy = self._policy_of(str(what["source"]))
        if policy is None:
            return {"id": int(what["id"]), "may": False, "relay": False, "rules": 0}
        may = policy.egress.resolves(str(what["name"]))
        return {"id": int(what["id"]), "may": may, "relay": policy.egress.has_internet, "rules": policy.number}

    async def _open(self, wire: socket.socket, what: dict[str, Any]) -> None:
        try:
            self._tell(wire, await self._opened(what))
        except (OSError, *_BAD) as error:  # OSError: the process has ended
            _log.error(_UNKNOWN, error)

    async def _opened(self, what: dict[str, Any]) -> dict[str, Any]:
        number, name = int(what["id"]), str(what["name"])
        policy = self._policy_of(str(what["source"]))
        if policy is None or not policy.egress.resolves(name):
            return {"id": number, "code": dns.NO_SUCH_NAME, **_NOTHING}
        found = [IPv4Address(each) for each in what["addresses"]]
        allowed = [each for each in found if not any(each in network for network in self._never)]
        ttl_s = min(max(int(what["ttl_s"]), LEAST_TTL_S), MOST_TTL_S)
        try:
            await policy.open_name(name, allowed, ttl_s + GRACE_S)
        except OSError as error:
            _log.warning("the addresses of %.80r were not opened: %s", name, error)
            return {"id": number, "code": dns.SERVER_FAILURE, **_NOTHING}
        self.answered += 1
        return {"id": number, "code": dns.NO_ERROR, "addresses": [str(each) for each in allowed], "ttl_s": ttl_s}


_BAD = (ValueError, KeyError, TypeError)
_UNKNOWN = "the resolver of private networks asked for what we do not know: %r"
_NOTHING: dict[str, Any] = {"addresses": [], "ttl_s": 0}


def places() -> Places:
    """What the process imports, and where it is in its tree."""
    return software(("sockd",), ())


def _enlarge(sock: socket.socket, option: int, force: int, size_bytes: int) -> None:
    """Make a buffer so large, or as large as this process is allowed, unless it is larger."""
    if sock.getsockopt(socket.SOL_SOCKET, option) < size_bytes:
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, size_bytes // 2)  # the kernel doubles it
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, option, size_bytes // 2)
