"""Two workers side by side: one without Zygotes, whose answers are right by definition, and one that learns.

Owns both. What differs between lives of the first one, each with a hash secret of its own, is noise, and not compared. A
Zygote may hold modules that a function does not import itself, of packages that it asked for: before a difference counts,
the function imports these alone as well.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.daemon.running import Answer, RunningDaemon
from tests.faults.sharing.catalogue import Entry

SETTINGS = {"memory_mb": 2048, "timeout_s": 120.0, "init_timeout_s": 120.0}
ALONE = "[zygote]\nenabled = false\n"
LEARNING = "[zygote]\nspares = 1\nmemory_mb = {memory_mb}\n"

TICK_S = 0.2
LIVES = 3

Fingerprint = Mapping[str, Any]


class Sides:
    """`learn` the right fingerprints, then `differences` of learned starts as often as wanted."""

    def __init__(self, directory: Path, entries: Iterable[Entry]) -> None:
        self._directory = directory
        self.entries = list(entries)
        self.right: dict[str, list[Fingerprint]] = {}
        self.alone: RunningDaemon | None = None
        self.daemon: RunningDaemon | None = None
        self.hits: Counter[str] = Counter()
        self.past_hits: Counter[str] = Counter()
        """Of workers before the last restart."""

    def learn(self) -> None:
        """What each function answers alone, in several lives of the worker; the last one goes on."""
        for life in range(LIVES):
            if self.alone is not None:
                self.alone.close()
            self.alone = RunningDaemon.start(self._directory / "alone", ALONE)
            for entry in self.entries:
                if life == 0:
                    self.alone.deploy(entry.name, entry.files(), **SETTINGS)
                self.right.setdefault(entry.name, []).append(_taken(self.alone, entry))

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
        for daemon in (self.alone, self.daemon):
            if daemon is not None:
                daemon.close()

    def differences(self, order: random.Random) -> Iterator[str]:
        """One line for each function that a fresh start answers differently now, in a random order."""
        assert self.daemon is not None
        for entry in order.sample(self.entries, len(self.entries)):
            try:
                seen = _taken(self.daemon, entry)
            except AssertionError as error:
                yield f"{entry.name} {entry.requirements}: {error}"
                continue
            if lines := self._differing(entry, seen):
                yield f"{entry.name} {entry.requirements}: {len(lines)} names: {'; '.join(lines[:5])}"

    def _differing(self, entry: Entry, seen: Fingerprint) -> list[str]:
        right = self.right[entry.name]
        found = list(difference(right, seen))
        more = [name for name in seen["modules"] if name not in right[0]["modules"]]
        if found and more:
            assert self.alone is not None
            found = list(difference([_taken(self.alone, entry, more), *right], seen))
        return found


def _taken(daemon: RunningDaemon, entry: Entry, also: Sequence[str] = ()) -> Fingerprint:
    answer: Answer = daemon.run(entry.name, {"also": also}, **{"x-sockd-fresh": "1"})
    assert answer.status == 200, answer.body[:300]
    taken: Fingerprint = answer.json
    return taken


def difference(right: Sequence[Fingerprint], seen: Fingerprint) -> Iterator[str]:
    """What `seen` has otherwise than the first of some starts alone, unless that is noise among them."""
    first = right[0]
    for part in ("answer", "registries"):
        if all(seen[part] != each[part] for each in right):
            yield f"{part} {seen[part]!r} instead of {first[part]!r}"
    for module, names in first["modules"].items():
        if module not in seen["modules"]:
            yield f"{module} is not there"
            continue
        here = seen["modules"][module]
        others = [each["modules"].get(module, {}) for each in right[1:]]
        for name in sorted(names.keys() | here.keys()):
            values = [names.get(name), *(other.get(name) for other in others)]
            if len(set(values)) == 1 and here.get(name) != values[0]:
                yield f"{module}.{name}"
