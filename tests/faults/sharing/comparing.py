"""Two workers side by side: one without Zygotes, whose answers are right by definition, and one that learns.

Owns both. What differs between two starts of the first one is noise, and not compared.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.daemon.running import Answer, RunningDaemon
from tests.faults.sharing.catalogue import Entry

SETTINGS = {"memory_mb": 2048, "timeout_s": 120.0, "init_timeout_s": 120.0}
ALONE = "[zygote]\nenabled = false\n"
LEARNING = "[zygote]\nspares = 1\nmemory_mb = {memory_mb}\n"

TICK_S = 0.2

Fingerprint = Mapping[str, Any]


class Sides:
    """`learn` the right fingerprints, then `differences` of learned starts as often as wanted."""

    def __init__(self, directory: Path, entries: Iterable[Entry]) -> None:
        self._directory = directory
        self.entries = list(entries)
        self.right: dict[str, tuple[Fingerprint, Fingerprint]] = {}
        self.daemon: RunningDaemon | None = None
        self.hits: Counter[str] = Counter()
        self.past_hits: Counter[str] = Counter()
        """Of workers before the last restart."""

    def learn(self) -> None:
        """What each function answers alone, twice, under two hash secrets."""
        state = self._directory / "alone"
        rounds: list[dict[str, Fingerprint]] = []
        for _ in range(2):
            daemon = RunningDaemon.start(state, ALONE)
            try:
                for entry in self.entries if not rounds else ():
                    daemon.deploy(entry.name, entry.files(), **SETTINGS)
                rounds.append({entry.name: _taken(daemon, entry) for entry in self.entries})
            finally:
                daemon.close()
        self.right = {name: (first, rounds[1][name]) for name, first in rounds[0].items()}

    def open(self, order: random.Random) -> None:
        """Start the worker that learns, and deploy everything to it in a random order."""
        self.daemon = RunningDaemon.start(self._directory / "learning", LEARNING.format(memory_mb=4096))
        for entry in order.sample(self.entries, len(self.entries)):
            self.daemon.deploy(entry.name, entry.files(), **SETTINGS)

    def settle(self) -> None:
        """Wait until the worker has made the Zygotes that it finds worth making, and count what starts had so far."""
        assert self.daemon is not None
        tick = threading.Event()
        while (status := self.daemon.status())["learning"]:
            tick.wait(TICK_S)
        self.hits = Counter(status["caches"]["import"])

    def restart(self, zygotes_mb: int) -> None:
        """End that worker, and start it again with what it has learned and so much memory for Zygotes."""
        assert self.daemon is not None
        self.past_hits += self.hits
        self.daemon.close()
        self.daemon = RunningDaemon.start(self._directory / "learning", LEARNING.format(memory_mb=zygotes_mb))

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.close()

    def differences(self, order: random.Random) -> Iterator[str]:
        """One line for each function that a fresh start answers differently now, in a random order."""
        assert self.daemon is not None
        for entry in order.sample(self.entries, len(self.entries)):
            try:
                seen = _taken(self.daemon, entry)
            except AssertionError as error:
                yield f"{entry.name} {entry.requirements}: {error}"
                continue
            if lines := list(difference(*self.right[entry.name], seen)):
                yield f"{entry.name} {entry.requirements}: {len(lines)} names: {'; '.join(lines[:5])}"


def _taken(daemon: RunningDaemon, entry: Entry) -> Fingerprint:
    answer: Answer = daemon.run(entry.name, {}, **{"x-sockd-fresh": "1"})
    assert answer.status == 200, answer.body[:300]
    taken: Fingerprint = answer.json
    return taken


def difference(first: Fingerprint, again: Fingerprint, seen: Fingerprint) -> Iterator[str]:
    """What `seen` has otherwise than a start alone, of which there are two, so that noise is known."""
    for part in ("answer", "registries"):
        if seen[part] not in (first[part], again[part]):
            yield f"{part} {seen[part]!r} instead of {first[part]!r}"
    for module, right in first["modules"].items():
        if module not in seen["modules"]:
            yield f"{module} is not there"
            continue
        noise = again["modules"].get(module, {})
        here = seen["modules"][module]
        for name in sorted(right.keys() | here.keys()):
            if right.get(name) == noise.get(name) and right.get(name) != here.get(name):
                yield f"{module}.{name}"
