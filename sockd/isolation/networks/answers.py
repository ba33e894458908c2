"""Answers: addresses that names stand for, on their way into the sets of the router's table.

Owns a netlink socket and the batch that is under way. The kernel is asked in a thread, and what arrives meanwhile becomes the
next transaction. So a function with many rules and many queries does not delay the event loop, and answers of others by one
transaction at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sockd.isolation.networks import ruleset
from sockd.linux.network import nfnetlink
from sockd.linux.network.netlink import Message, NetlinkSocket
from sockd.linux.network.nfnetlink import Element

MOST_ELEMENTS = 512
"""Addresses of one transaction: its messages and their acknowledgements fit into the buffers of a netlink socket."""
_Key = tuple[str, str]
"""A set and an address."""


@dataclass(eq=False, slots=True)
class _Request:
    """Addresses for some sets, which are opened together."""

    names: Sequence[str]
    addresses: Sequence[str]
    ttl_s: float
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def elements(self) -> dict[_Key, float]:
        """The lifetime of each address in each set."""
        return {(name, address): self.ttl_s for name in self.names for address in self.addresses}


class Answers:
    """`put` addresses into sets; `aclose` after the last one."""

    def __init__(self, rules: NetlinkSocket) -> None:
        """Args: rules: a socket of the router's namespace, owned from now on."""
        self._rules = rules
        self._waiting: list[_Request] = []
        self._writing: asyncio.Task[None] | None = None
        self.transactions = 0
        """How many the kernel was asked for."""

    async def put(self, names: Sequence[str], addresses: Sequence[str], ttl_s: float) -> None:
        """Open addresses in sets, for so long from now on, whether or not they are open. Raises: OSError."""
        if not names or not addresses:
            return
        request = _Request(names, addresses, ttl_s)
        self._waiting.append(request)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        await request.done

    async def aclose(self) -> None:
        """Wait for what was put, and close the socket."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._rules.close()

    async def _write(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                await self._exchange(batch)
            except OSError:
                for each in batch:  # the set of one may be gone: its function has other rules
                    await self._write_alone(each)
            else:
                for each in batch:
                    _settle(each, None)
        self._writing = None

    def _take(self) -> list[_Request]:
        """Remove the requests of the next transaction from those that wait: at least one, and as many as fit."""
        count = size = 0
        for each in self._waiting:
            size += len(each.names) * len(each.addresses)
            if count and size > MOST_ELEMENTS:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _write_alone(self, request: _Request) -> None:
        try:
            await self._exchange([request])
        except OSError as error:
            _settle(request, error)
        else:
            _settle(request, None)

    async def _exchange(self, requests: Sequence[_Request]) -> None:
        """Write the elements of some requests, of equal ones the longest lifetime. Raises: OSError."""
        lifetimes: dict[_Key, float] = {}
        for request in requests:
            for key, ttl_s in request.elements().items():
                lifetimes[key] = max(ttl_s, lifetimes.get(key, 0))
        pairs = list(lifetimes.items())
        for first in range(0, len(pairs), MOST_ELEMENTS):
            self.transactions += 1
            await asyncio.to_thread(self._rules.exchange, _transaction(dict(pairs[first : first + MOST_ELEMENTS])))


def _transaction(lifetimes: dict[_Key, float]) -> list[Message]:
    """Messages that open addresses anew: each is added, so that it is there, deleted, and added. An element that is there would
    keep its old end."""
    sets: dict[str, list[Element]] = {}
    for (name, address), ttl_s in lifetimes.items():
        sets.setdefault(name, []).append(Element(address, timeout_ms=max(1, int(ttl_s * 1000))))
    steps = (nfnetlink.add, nfnetlink.delete, nfnetlink.add)
    messages = [step(ruleset.TABLE, name, elements) for name, elements in sets.items() for step in steps]
    return nfnetlink.batch(*messages)


def _settle(request: _Request, error: OSError | None) -> None:
    if not request.done.done():  # its waiter may have been cancelled
        if error is None:
            request.done.set_result(None)
        else:
            request.done.set_exception(error)
