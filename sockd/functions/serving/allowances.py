"""The allowances of all functions of a worker, and the numbers of requests that they admitted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial

from sockd.base.errors import NoSuchFunction
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.admission import Admission
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.function import Caches


class Allowances:
    """`opened` makes one, `closed` takes it out, `close` closes all. For one event loop."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._of: dict[str, Allowance] = {}
        self.resized: list[Callable[[str], None]] = []
        """Called with the name of a function that is live now, or whose concurrency may be another."""
        caches.shares.followers.append(self._divide_all)
        caches.shares.claim_followers.append(self._divide)

    def get(self, name: str) -> Allowance | None:
        """A function's allowance; None: it is not live."""
        return self._of.get(name)

    def opened(self, name: str, config: FunctionConfig) -> Allowance:
        """A function's allowance with the limits of its last deploy. Raises: NoCapacity."""
        allowance = self._of.get(name)
        if allowance is None:
            caches = self._caches
            allowance = Allowance(
                name,
                config,
                caches.budget,
                caches.open_account,
                caches.networks,
                caches.start_limits,
                caches.function_tasks,
                partial(caches.shares.of_concurrency, name),
                partial(self._note_resized, name),
                partial(caches.shares.want, name),
            )
            self._of[name] = allowance
            self._note_resized(name)
        else:
            allowance.change(config)
        return allowance

    def closed(self, name: str) -> Allowance | None:
        """The allowance of a removed function, whose egress rules end with its last request; None: it was not live."""
        allowance = self._of.pop(name, None)
        if allowance is not None:
            allowance.close()
        return allowance

    def admission(self, name: str) -> Admission:
        """A function's admission queue. Raises: NoSuchFunction, also while its packages are missing."""
        if name not in self._of:
            raise NoSuchFunction(f"no function {name!r} is live")
        return self._of[name].admission

    def active(self) -> list[str]:
        """The functions that have requests running or waiting."""
        return [name for name, allowance in self._of.items() if allowance.admission.running]

    def under_way(self) -> Counter[str]:
        """Count the requests that run or wait, by function."""
        return Counter(
            {
                name: each.admission.running + each.admission.waiting
                for name, each in self._of.items()
                if each.admission.running
            }
        )

    def running(self) -> int:
        """Requests that run now."""
        return sum(each.admission.running for each in self._of.values())

    def waiting(self) -> int:
        """Requests that wait for their function's concurrency."""
        return sum(each.admission.waiting for each in self._of.values())

    def waiting_to_start(self) -> int:
        """Requests that wait because as many sandboxes of their function start as may."""
        return sum(len(each.starts.waiters) for each in self._of.values())

    async def drain(self, deadline_s: float) -> None:
        """Refuse new requests, and wait for admitted ones until the deadline."""
        admissions = [allowance.admission for allowance in self._of.values()]
        for admission in admissions:
            admission.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*(admission.drain() for admission in admissions))

    def admitted(self, name: str) -> int:
        """Return how many requests of a function run at once, or may; 0: none runs, and one may."""
        if name not in self._of:
            return 0
        admission = self._of[name].admission
        most = max(admission.concurrency, admission.running)
        return most if most > 1 else admission.running

    def _divide(self, name: str) -> None:
        """Workers want other parts of a function's concurrency: admit this worker's new share."""
        if name in self._of:
            self._of[name].divide()

    def _divide_all(self) -> None:
        """The group has other workers: admit this worker's new share of each concurrency."""
        for allowance in self._of.values():
            allowance.divide()

    def _note_resized(self, name: str) -> None:
        for listener in self.resized:
            listener(name)

    def close(self) -> None:
        """Close all, and the rules of their networks."""
        for allowance in self._of.values():
            allowance.close()
            allowance.egress.close()
        self._of.clear()
