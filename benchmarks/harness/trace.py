"""Traces of functions and requests with the skew that real ones have. Reproducible: equal arguments, equal trace.

The model, and where each choice comes from:
- functions are called with Zipf popularity (exponent 1.0), at random times (Poisson);
- a function asks for 1 to 5 packages by name, drawn by Zipf popularity (SOCK 2.3: import popularity is strongly
  skewed), and gets their
  real dependency closures;
- its code imports them in alphabetical order or, one function in two, in any order; what each of them changes outside of its own
  modules was measured (`package_table.WRITES`);
- functions were written at different times: each takes all its packages from one of three vintages (60, 25, 15 %), and
  (package, version) pairs of different vintages share nothing;
- popularity moves: four times in a trace, a tenth of the functions swap ranks with others.
"""

from __future__ import annotations

import json
from bisect import bisect
from itertools import accumulate
from random import Random
from typing import Any

from benchmarks.harness.package_table import LOOKS_FOR, PACKAGES, POPULAR, WRITES, closure

VINTAGES = (("new", 0.60), ("mid", 0.25), ("old", 0.15))
ASKED = ((1, 0.30), (2, 0.30), (3, 0.20), (4, 0.12), (5, 0.08))
"""How many packages a function asks for by name, and the share of functions that ask for so many."""
ANY_ORDER = 0.5
DRIFTS = 4
DRIFTING = 0.1


def make_trace(*, functions: int, requests: int, rate_per_s: float = 20.0, seed: int = 1) -> dict[str, Any]:
    """A trace as the simulator reads it.

    Args:
        functions: how many distinct functions (100 to 10 000 in SOCK's Figure 20).
        requests: how many requests over all.
        rate_per_s: requests per second, over all functions.
        seed: of everything random."""
    rng = Random(seed)
    imports = [_function(rng) for _ in range(functions)]
    keys = sorted({key for function in imports for import_ in function for key in import_})
    cumulative = list(accumulate(1.0 / rank for rank in range(1, functions + 1)))
    ranks = rng.sample(range(functions), functions)
    times: list[float] = []
    calls: list[int] = []
    now = 0.0
    for index in range(requests):
        if index and index % (requests // (DRIFTS + 1) or 1) == 0:
            _drift(ranks, rng)
        now += rng.expovariate(rate_per_s)
        times.append(round(now, 4))
        calls.append(ranks[min(bisect(cumulative, rng.random() * cumulative[-1]), functions - 1)])
    number = {key: index for index, key in enumerate(keys)}
    return {
        "packages": [[key, _cost(key).own_ms / 1e3, int(_cost(key).own_mb * 2**20)] for key in keys],
        "requires": {key: PACKAGES[_name(key)].depends for key in keys},
        "looks_for": {key: LOOKS_FOR[_name(key)] for key in keys if _name(key) in LOOKS_FOR},
        "writes": {key: WRITES[_name(key)] for key in keys if _name(key) in WRITES},
        "functions": [[[number[key] for key in import_] for import_ in function] for function in imports],
        "times": times,
        "calls": calls,
        "origin": {"functions": functions, "requests": requests, "rate_per_s": rate_per_s, "seed": seed},
    }


def dump(trace: dict[str, Any]) -> bytes:
    """The trace as the simulator's standard input."""
    return json.dumps(trace, separators=(",", ":")).encode()


def _function(rng: Random) -> list[list[str]]:
    """What one function imports, in order: (package, vintage) keys, each package with its dependencies behind it."""
    (count,) = rng.choices([n for n, _ in ASKED], [share for _, share in ASKED])
    (vintage,) = rng.choices([name for name, _ in VINTAGES], [share for _, share in VINTAGES])
    weights = [1.0 / rank for rank in range(1, len(POPULAR) + 1)]
    names = sorted({rng.choices(POPULAR, weights)[0] for _ in range(count)})
    if rng.random() < ANY_ORDER:
        rng.shuffle(names)
    return [
        [f"{name}-{vintage}-wheel" for name in (package, *sorted(closure(package) - {package}))] for package in names
    ]


def _cost(key: str) -> Any:
    return PACKAGES[_name(key)]


def _name(key: str) -> str:
    """Return the name in NAME-VINTAGE-wheel, which has the shape of the worker's keys."""
    return key.rsplit("-", 2)[0]


def _drift(ranks: list[int], rng: Random) -> None:
    for _ in range(int(len(ranks) * DRIFTING / 2)):
        a, b = rng.randrange(len(ranks)), rng.randrange(len(ranks))
        ranks[a], ranks[b] = ranks[b], ranks[a]
