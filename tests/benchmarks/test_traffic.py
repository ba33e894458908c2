"""Traffic is drawn as it says, and the same again."""

from __future__ import annotations

import json
import random
from collections import Counter

from benchmarks.harness.load import framed, unframed
from benchmarks.harness.traffic import LARGEST, SMALLEST, gap_s, requests

DRAWN = requests(("a", "b", "c"), 5000)


def bodies() -> list[bytes]:
    return [request.partition(b"\r\n\r\n")[2] for request in DRAWN]


def test_a_seed_gives_the_same_requests() -> None:
    assert requests(("a", "b", "c"), 5000) == DRAWN
    assert requests(("a", "b", "c"), 5000, seed=1) != DRAWN
    assert unframed(framed(DRAWN)) == DRAWN


def test_bodies_are_json_of_many_lengths() -> None:
    sizes = sorted(len(body) for body in bodies())
    assert (sizes[0] >= SMALLEST, sizes[-1]) == (True, LARGEST)
    assert 400 < sizes[2500] < 600 and sizes[500] < 60 and sizes[4500] > 4000
    assert len(set(sizes)) > 1500
    assert all(json.loads(body) == "x" * (len(body) - 2) for body in bodies()[:100])


def test_half_has_a_trace_one_in_a_hundred_is_the_last_and_functions_follow_zipf() -> None:
    assert 2300 < sum(b"traceparent: 00-" in request for request in DRAWN) < 2700
    assert 25 < sum(b"Connection: close" in request for request in DRAWN) < 80
    named = Counter(request[10:11] for request in DRAWN)
    assert 1.8 < named[b"a"] / named[b"b"] < 2.2 and 2.7 < named[b"a"] / named[b"c"] < 3.3
    assert not any(b"Connection: close" in request for request in requests(("a",), 1000, last=0.0))


def test_gaps_are_log_uniform() -> None:
    rng = random.Random(0)
    gaps = sorted(gap_s(rng, 0.01, 100) for _ in range(4000))
    assert gaps[0] >= 0.01 and gaps[-1] <= 100
    assert 0.08 < gaps[1000] < 0.125 and 0.8 < gaps[2000] < 1.25 and 8 < gaps[3000] < 12.5
