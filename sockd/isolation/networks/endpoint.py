"""Endpoint: one network namespace for one sandbox, and its address.

Owns the namespace's descriptor, the address and its entry in the router's map, the memory that is reserved for it. It is
never given to another sandbox: what is left in a namespace when its processes are gone (TIME_WAIT, metrics of routes,
counters) tells of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Protocol

from sockd.isolation.networks.policy import Policy
from sockd.isolation.networks.router import Router

MEMORY_BYTES = 300_000
"""The kernel's memory, unreclaimable, for one with a link (measured: 293 KB and 6 KB on each processor)."""
EMPTY_MEMORY_BYTES = 190_000
"""Without a link."""
_log = logging.getLogger(__name__)


class Reserved(Protocol):
    """Memory that was set aside (`sockd.isolation.sandbox.memory_budget.Reservation`)."""

    def close(self) -> None: ...


class Endpoint:
    """`admit` gives it a function's rules; before that everything is refused. `close`, once its last process is gone."""

    def __init__(self, namespace: int, memory: Reserved, router: Router | None = None, address: str = "") -> None:
        """Args: namespace: owned from now on; router, address: of one with a link; else there is nothing but the loopback."""
        self.namespace: int | None = namespace
        self.address = address
        self.policy: Policy | None = None
        self.take_back: Callable[[Endpoint], None] = Endpoint.close
        """Takes it over when its last process is gone; its pool's."""
        self.was_ready = True
        """Whether the pool had it; else it was made while somebody waited."""
        self._granted = 0
        """Connections; its router's."""
        self._memory = memory
        self._router = router

    def admit(self, policy: Policy) -> None:
        """The function's rules hold for it from now on (some 15 µs). Once. Raises: OSError."""
        assert self._router is not None and self.policy is None
        self._granted = self._router.admit(self.address, policy.chain)
        self.policy = policy
        policy.add_user(self.address)

    def close(self) -> None:
        """With the descriptor go, in the kernel's own time, the link, its routes and neighbours. Safe to call twice."""
        namespace, self.namespace = self.namespace, None
        if namespace is None:
            return
        os.close(namespace)
        if self._router is not None:
            self._dismiss(self._router)
        self._memory.close()

    def _dismiss(self, router: Router) -> None:
        policy, self.policy = self.policy, None
        if policy is not None:
            try:
                router.dismiss(self.address, policy.chain, self._granted)
            except OSError as error:
                # The address stays taken: no other sandbox may come under the rules that it has.
                _log.error("the rules of %s could not be taken away: %s", self.address, error)
                return
            finally:
                policy.remove_user(self.address)
        router.addresses.give_back(self.address)
