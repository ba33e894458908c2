"""A worker that learns, and in it two functions for each entry: one that Zygotes with packages serve, and one that none serves.

Owns the worker. Both are forked from the same root Zygote, so they share its hash secret, and with it the order of sets. The
second one has a variable that every import is taken to read: its starts are right by definition.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.daemon.running import RunningDaemon
from tests.faults.sharing.catalogue import Entry

PATIENCE_S = 600.0
"""The time limit of a start and of a request: on a busy machine the largest packages take minutes, and no answer depends on
that."""
SETTINGS = {"memory_mb": 2048, "timeout_s": PATIENCE_S, "init_timeout_s": PATIENCE_S}
AT_ONCE = 3
"""Functions that are deployed, or compared, at once."""
CONFIG = "[zygote]\nspares = 1\nverifiers = 8\nmemory_mb = {memory_mb}\n"
"""Several of the hundreds of versions are verified at a time, as a busy host gives each verification a small share of it."""
OWN_START = {"LC_TEST": "1"}
"""No Zygote with packages serves a function that has such a variable (`sockd.starts.zygotes.top_levels.soundness`)."""
TICK_S = 0.2
NOISE = frozenset({"pandas.core.computation.expr"})
"""Modules with a tuple in the order of a set of classes, which are hashed by address (`PandasExprVisitor.unsupported_nodes`): the
starts of its own may all have one order by chance, and the Zygote another."""
SURE, MOST = 5, 15
"""Starts of its own that a difference is compared with; and as long as it is there, more: each has other addresses, but what
depends on them is often equal in five."""

Fingerprint = Mapping[str, Any]


class Worker:
    """`deploy` once, then `differences` as often as wanted, `settle` and `restart` between them."""

    def __init__(self, directory: Path, entries: Iterable[Entry], *, zygotes_mb: int) -> None:
        self._state = directory / "state"
        self.entries = list(entries)
        self.hits: Counter[str] = Counter()
        """What starts had so far, of this life; and of those before."""
        self.past_hits: Counter[str] = Counter()
        self._own: dict[str, list[Fingerprint]] = {}
        """Starts of each function's own: what differs between them holds a time, a random value or an id."""
        self.daemon = RunningDaemon.start(self._state, CONFIG.format(memory_mb=zygotes_mb))

    def deploy(self, order: random.Random) -> None:
        """Everything, in a random order. Raises: DeployFailed."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._deploy, order.sample(self.entries, len(self.entries))))

    def _deploy(self, entry: Entry) -> None:
        self.daemon.deploy(entry.name, entry.files(), **SETTINGS)
        own = replace(entry, env={**entry.env, **OWN_START})
        self.daemon.deploy(f"{entry.name}-own", own.files(), **SETTINGS)

    def settle(self) -> None:
        """Wait until the worker has made and verified the Zygotes that it finds worth it, and count what starts had so far."""
        tick = threading.Event()
        while (status := self.daemon.status())["learning"] or status["verifying"]:
            tick.wait(TICK_S)
        self.hits = Counter(status["caches"]["import"])

    def restart(self, zygotes_mb: int) -> None:
        """End the worker, and start it again with what it has learned and so much memory for Zygotes."""
        self.past_hits += self.hits
        self.daemon.close()
        self._own.clear()
        self.daemon = RunningDaemon.start(self._state, CONFIG.format(memory_mb=zygotes_mb))

    def close(self) -> None:
        self.daemon.close()

    def differences(self, order: random.Random) -> Iterator[str]:
        """One line for each function that a new sandbox answers otherwise than a start of its own, in a random order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from filter(None, pool.map(self._compared, order.sample(self.entries, len(self.entries))))

    def _compared(self, entry: Entry) -> str:
        """What differs; empty: nothing."""
        try:
            lines = list(self._differing(entry))
        except AssertionError as error:
            lines = [str(error)]
        return f"{entry.name} {entry.requirements}: {len(lines)} differ: {'; '.join(lines[:5])}" if lines else ""

    def _differing(self, entry: Entry) -> Iterator[str]:
        if entry.name not in self._own:
            self._own[entry.name] = [self._taken(f"{entry.name}-own")]
        own, seen = self._own[entry.name], self._taken(entry.name)
        if len(own) == 1 and any(difference(own, seen)):
            own.append(self._taken(f"{entry.name}-own"))
        more = [name for name in seen["begun"] if name not in own[0]["modules"]]
        if any(difference(own, seen)):
            # Its Zygote may hold modules of its packages that it does not import itself: both are compared with these, imported
            # in one order, which `warnings.filters` shows. And what depends on addresses may be equal in two starts by chance.
            own = [self._taken(f"{entry.name}-own", also=more, pids=seen["pids"]) for _ in range(SURE)]
            while len(own) < MOST and any(difference(own, seen)):
                own.append(self._taken(f"{entry.name}-own", also=more, pids=seen["pids"]))
        return difference(own, seen)

    def _taken(self, name: str, **event: Sequence[object]) -> Fingerprint:
        answer = self.daemon.request(
            "POST", f"/run/{name}", json.dumps(event), {"x-sockd-fresh": "1"}, patience_s=PATIENCE_S
        )
        assert answer.status == 200, answer.body[:300]
        taken: Fingerprint = answer.json
        return taken


def difference(own: Sequence[Fingerprint], seen: Fingerprint) -> Iterator[str]:
    """What `seen` has otherwise than starts of its own, where these are equal."""
    first, *others = own
    for part in ("answer", "registries"):
        if seen[part] not in [each[part] for each in own]:
            yield f"{part} {seen[part]!r} instead of {first[part]!r}"
    for module, names in first["modules"].items():
        if module in NOISE:
            continue
        here = seen["modules"].get(module)
        if here is None:
            yield f"{module} is not there"
            continue
        same = [each["modules"].get(module, {}) for each in others]
        for name in sorted(names.keys() | here.keys()):
            if names.get(name) != here.get(name) and all(names.get(name) == each.get(name) for each in same):
                yield f"{module}.{name}"
