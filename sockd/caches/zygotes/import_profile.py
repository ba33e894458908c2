"""The observed imports of functions, by distribution, which decide what a Zygote imports. Pure except for load and
save.

Owns the observations; publishes them and the record of refused packages (`refusals`) to `state/learned.json`. Knows nothing of
Zygotes, processes or paths.

What a Zygote may import: only modules of distributions in its set, and of those only modules that a function whose
closure contains that whole set was seen importing. So only requested code runs, and a module that needs an
optional dependency is not imported without it. Among functions that share a distribution,
a module is included if at least `share` of the informative observations contain it (default half): pandas.plotting, used by one
function in ten, stays out of the Zygote of the other nine, and is imported by its user itself.

A function that was forked from a Zygote with pandas shows only the modules that it imported in addition. Such a distribution is
`inherited` in that observation: it counts for the added modules, against none, and does not replace the function's earlier
observation.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sockd import __version__
from sockd.caches.zygotes.refusals import Refusals

FORMAT = 3
"""Format of `learned.json`. Of 1 and 2, older workers', and of another version of the worker or of Python, what functions
imported is taken over; what failed and was refused is tried again. Any other format is dropped: it can be learned again."""
WORKER = f"{__version__} {sys.version}"


class Seen(NamedTuple):
    """One module that a function imported, in the order in which the imports began (the order of sys.modules)."""

    key: str
    """The distribution that the module came from."""
    module: str
    seconds: float
    """Its own import time, without what it imported in turn."""


@dataclass(frozen=True, slots=True)
class _Observation:
    closure: frozenset[str]
    inherited: frozenset[str]
    """Distributions pre-imported for this function at every time it was seen."""
    seen: tuple[Seen, ...]

    @property
    def says_something(self) -> bool:
        return bool(self.seen) or not self.closure <= self.inherited


class ImportProfile:
    """The imports of recent functions, and what follows for a Zygote's set of distributions."""

    def __init__(
        self, *, max_modules: int = 5000, share: float = 0.5, max_functions: int = 512, max_alike: int = 8
    ) -> None:
        """Empty.

        Args:
            max_modules: most modules that one Zygote pre-imports, and most that one function may report.
            share: of the functions that could tell, how many must have imported a module.
            max_functions: observations kept, the least recent dropped first.
            max_alike: of these, how many functions with the very same closure."""
        self.max_modules = max_modules
        self.share = share
        self.max_functions = max_functions
        self.max_alike = max_alike
        self._observations: OrderedDict[str, _Observation] = OrderedDict()
        self._failed: dict[str, frozenset[str]] = {}

    def observe(
        self, function: str, closure: frozenset[str], seen: Iterable[Seen], *, inherited: frozenset[str] = frozenset()
    ) -> None:
        """Notes what a function imported.

        Args:
            function: its name and version; a new version is a new function.
            closure: every distribution that it asked for.
            seen: what it imported; modules of distributions outside the closure, or beyond max_modules, are dropped.
            inherited: distributions that its Zygote had imported for it."""
        new = [entry for entry in seen if entry.key in closure][: self.max_modules]
        old = self._observations.pop(function, None)
        if old is not None and old.closure == closure:
            names = {entry.module for entry in new}
            new = [entry for entry in old.seen if entry.key in inherited and entry.module not in names] + new
            inherited = inherited & old.inherited
        self._observations[function] = _Observation(closure, inherited & closure, tuple(new[: self.max_modules]))
        self._forget_surplus(closure)

    def failed(self, keys: frozenset[str], modules: Iterable[str]) -> None:
        """Notes modules that could not be imported in a Zygote of `keys`; sets without more than these skip them."""
        for module in modules:
            self._failed[module] = self._failed.get(module, frozenset()) | keys

    def forgive(self, key: str) -> None:
        """Lets the modules that failed in Zygotes with a distribution be tried again."""
        self._failed = {module: keys for module, keys in self._failed.items() if key not in keys}

    def modules_for(self, keys: Iterable[str]) -> list[str]:
        """The modules that a Zygote of these distributions imports, parents first, in the order functions imported
        them.

        Bounded by `max_modules`, the most frequently seen kept. Empty when no function with all of `keys` was seen."""
        wanted = frozenset(keys)
        relevant = [seen for seen in self._observations.values() if wanted <= seen.closure]
        relevant.sort(key=lambda observation: -len(observation.seen))
        judges: Counter[str] = Counter()
        for observation in relevant:
            judges.update(wanted - observation.inherited)
        votes: Counter[str] = Counter()
        late: Counter[str] = Counter()
        home: dict[str, str] = {}
        for observation in relevant:
            for entry in observation.seen:
                if entry.key in wanted:
                    home.setdefault(entry.module, entry.key)
                    votes[entry.module] += 1
                    late[entry.module] += entry.key in observation.inherited
        chosen = [
            module
            for module, key in home.items()
            if votes[module] >= self.share * (judges[key] + late[module]) and not self._fails(module, wanted)
        ]
        # A child kept without its parent costs nothing: importing it imports the parent.
        chosen.sort(key=lambda module: -votes[module])
        kept = set(chosen[: self.max_modules])
        return _parents_first([module for module in home if module in kept], kept)

    def seen_by(self, function: str) -> tuple[Seen, ...] | None:
        """What a function (its name and version) was seen importing; None, if nothing is known of it."""
        observation = self._observations.get(function)
        return observation.seen if observation is not None else None

    def order_of(self, function: str, modules: Sequence[str]) -> list[str]:
        """A Zygote's modules and those that a function was seen importing, in the order in which a start of its own would begin
        them, as far as that is known."""
        observation = self._observations.get(function)
        if observation is None:
            return list(modules)
        own = [entry.module for entry in observation.seen]
        if not observation.inherited:
            return list(dict.fromkeys([*own, *modules]))
        # When the inherited ones would begin is not known: they stay where they are, and its own take each other's places.
        shared = set(modules) & set(own)
        in_turn = iter([module for module in own if module in shared])
        merged = [next(in_turn) if module in shared else module for module in modules]
        return list(dict.fromkeys([*merged, *own]))

    def seconds_by_key(self) -> dict[str, float]:
        """Import time of each distribution seen: the mean, over functions that could tell, of the sum over its
        modules."""
        total: dict[str, float] = {}
        times: Counter[str] = Counter()
        for observation in self._observations.values():
            told = {entry.key for entry in observation.seen} - observation.inherited
            times.update(told)
            for entry in observation.seen:
                if entry.key in told:
                    total[entry.key] = total.get(entry.key, 0.0) + entry.seconds
        return {key: seconds / times[key] for key, seconds in total.items()}

    def forget(self, key: str) -> None:
        """Drops every module of a distribution (it was removed from the install cache, or misbehaved)."""
        for function, observation in self._observations.items():
            if key in observation.closure:
                seen = tuple(entry for entry in observation.seen if entry.key != key)
                self._observations[function] = _Observation(observation.closure, observation.inherited, seen)

    def to_json(self) -> dict[str, Any]:
        """Everything learned, as plain data; module names and keys once each."""
        names: dict[str, int] = {}

        def number(name: str) -> int:
            return names.setdefault(name, len(names))

        functions = [
            {
                "function": function,
                "closure": [number(key) for key in sorted(observation.closure)],
                "inherited": [number(key) for key in sorted(observation.inherited)],
                "seen": [[number(key), number(module), round(s, 6)] for key, module, s in observation.seen],
            }
            for function, observation in self._observations.items()
        ]
        failed = {module: sorted(keys) for module, keys in self._failed.items()}
        return {"functions": functions, "failed": failed, "names": list(names)}

    def update_from_json(self, data: dict[str, Any]) -> None:
        """Adds what `to_json` gave. Raises: ValueError, KeyError, TypeError, IndexError or AttributeError when it is
        not that."""
        names = [_text(name) for name in data["names"]]
        for item in data["functions"]:
            closure = frozenset(names[index] for index in item["closure"])
            inherited = frozenset(names[index] for index in item["inherited"])
            seen = [Seen(names[key], names[module], float(seconds)) for key, module, seconds in item["seen"]]
            self.observe(_text(item["function"]), closure, seen, inherited=inherited)
        for module, keys in data["failed"].items():
            self.failed(frozenset(map(_text, keys)), [_text(module)])

    def _fails(self, module: str, wanted: frozenset[str]) -> bool:
        failed = self._failed.get(module)
        return failed is not None and wanted <= failed

    def _forget_surplus(self, closure: frozenset[str]) -> None:
        alike = {function: each for function, each in self._observations.items() if each.closure == closure}
        # First those that were forked with everything and added nothing: however many come, the one that could tell stays.
        for function in sorted(alike, key=lambda name: alike[name].says_something)[
            : max(len(alike) - self.max_alike, 0)
        ]:
            del self._observations[function]
        while len(self._observations) > self.max_functions:
            self._observations.popitem(last=False)


def save_learned(path: Path, profile: ImportProfile, refused: Refusals) -> None:
    """Publishes both by rename: a reader, or the next daemon, sees the old file or the new one. Raises: OSError."""
    data = {"format": FORMAT, "worker": WORKER, "imports": profile.to_json(), "refused": refused.to_json()}
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(draft, "x", opener=_for_us_alone) as file:
            json.dump(data, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def load_learned(path: Path, **bounds: Any) -> tuple[ImportProfile, Refusals, str | None]:
    """What an earlier daemon learned, and, when that could not be read, why both start empty (for the log).

    Args:
        path: `state/learned.json`; missing is not an error.
        bounds: as for `ImportProfile`."""
    profile, refused = ImportProfile(**bounds), Refusals()
    try:
        data = json.loads(path.read_text())
        if data["format"] not in (1, 2, FORMAT):
            raise ValueError(f"format {data['format']!r}, this daemon writes {FORMAT}")
        if data["format"] != FORMAT or data.get("worker") != WORKER:
            data = {"imports": {**data["imports"], "failed": {}}, "refused": []}
        profile.update_from_json(data["imports"])
        refused.update_from_json(data["refused"])
    except FileNotFoundError:
        return profile, refused, None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        problem = f"{path}: starting without what was learned: {type(error).__name__}: {error}"
        return ImportProfile(**bounds), Refusals(), problem
    return profile, refused, None


def _parents_first(modules: Iterable[str], kept: set[str]) -> list[str]:
    """The same modules in the same order, but a package always before its submodules."""
    placed: dict[str, None] = {}
    for module in modules:
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if name in kept:
                placed.setdefault(name)
    return list(placed)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value
