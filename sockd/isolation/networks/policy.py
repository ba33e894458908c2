"""Policy: the rules of one function as the router has them: a chain, and for names the sets that DNS answers are added to.

Owns the chain. It can be changed while sandboxes run: what they send is judged by the new rules from then on, established
connections included.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address

from sockd.isolation.networks import ruleset
from sockd.isolation.networks.egress import Egress, covers
from sockd.isolation.networks.router import Router

_numbers = itertools.count(1)
"""For names of chains and marks; no number is used twice, so nothing that is left of old rules means anything."""


class Policy:
    """`make`, `change`, `close`; a closed one goes with its last endpoint."""

    def __init__(
        self, router: Router, chain: ruleset.Chain, of: dict[str, Policy], on_gone: Callable[[Policy], object]
    ) -> None:
        self._router = router
        self._of = of
        self._now = chain
        self._on_gone = on_gone
        self._changing = asyncio.Lock()
        self._addresses: set[str] = set()
        self._is_closed = False

    @classmethod
    async def make(
        cls, router: Router, egress: Egress, of: dict[str, Policy], on_gone: Callable[[Policy], object]
    ) -> Policy:
        """Args:
            of: all policies by the addresses of their endpoints, kept up to date.
            on_gone: called when it is closed and has no endpoint any more: it is to be removed.
        Raises: OSError."""
        number = next(_numbers)
        chain = ruleset.Chain(f"function-{number}", number, egress)
        await router.apply(ruleset.chain(chain))
        return cls(router, chain, of, on_gone)

    @property
    def chain(self) -> str:
        """The chain's name, which stays."""
        return self._now.name

    @property
    def egress(self) -> Egress:
        return self._now.egress

    async def change(self, egress: Egress) -> None:
        """Other rules, for all endpoints at once. What names stood for has to be asked for anew. Raises: OSError; unchanged."""
        async with self._changing:
            if egress == self._now.egress:
                return
            new = ruleset.Chain(self._now.name, next(_numbers), egress)
            await self._router.apply(ruleset.chain(new, self._now))
            self._now = new

    @property
    def number(self) -> int:
        """The number of the rules as they are now; other rules of the same function have another one."""
        return self._now.mark

    async def open_name(self, name: str, addresses: Sequence[IPv4Address], ttl_s: float) -> None:
        """Open the addresses of a name, by the rules that name it. Args: name: in lower case. Raises: OSError."""
        sets = [each for each, pattern in self._now.sets().items() if covers(pattern, name)]
        await self._router.answers.put(sets, [str(each) for each in addresses], ttl_s)

    def add_user(self, address: str) -> None:
        """An endpoint has these rules."""
        self._addresses.add(address)
        self._of[address] = self

    def remove_user(self, address: str) -> None:
        """Forget the address of an endpoint that is gone."""
        self._addresses.discard(address)
        self._of.pop(address, None)
        self._look_whether_it_is_gone()

    def close(self) -> None:
        """No further endpoint gets these rules. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._look_whether_it_is_gone()

    async def remove(self) -> None:
        """Remove the chain, which no endpoint has any more. Raises: OSError."""
        async with self._changing:
            await self._router.apply(ruleset.removal_of(self._now))

    def _look_whether_it_is_gone(self) -> None:
        if self._is_closed and not self._addresses:
            self._on_gone(self)
