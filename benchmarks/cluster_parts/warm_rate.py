"""Warm requests per second of one worker, of two and of three, each on a processor of its own.

Each worker has a caller, which runs on the worker's processor: what the caller takes is the same share of each processor, so
that the ratios are of workers and not of callers. A bare server that answers in-process is measured in the same turns, pinned
likewise: its ratio is what the processors of this machine give two programs that share nothing. Where there are fewer
processors than workers, two workers share one, and there is no ratio to expect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cluster_parts.group import Group, number_of, pinned, together
from benchmarks.harness.functions import ECHO, Function
from benchmarks.harness.load import Load, drive, generator
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.traffic import requests
from benchmarks.warm import in_process_server

CONNECTIONS = 16
"""Connections of each caller."""
REQUESTS = 2000
MOST = 3
Address = tuple[str, int]


def measure_warm_rate(run: Run, group: Group, scratch: Path, result: Result) -> None:
    names = [f"warm{number}" for number in range(5)]
    for name in names:
        group.deploy(Function(name, ECHO).write(scratch), name)
    sent = requests(names, REQUESTS)
    workers = [(each.host, each.port) for _, each in sorted(group.workers.items(), key=lambda row: number_of(row[0]))]
    with ExitStack() as stack:
        bare = [_bare(stack, number) for number in range(min(MOST, len(workers)))]
        sides = {"workers": workers, "bare servers": bare}
        seconds, rates = run.pick(2.0, 0.5), dict[tuple[str, int], list[float]]()
        for address in (*workers, *bare):
            drive(*address, sent, concurrency=CONNECTIONS, seconds=run.pick(1.0, 0.3))
        for _ in range(run.pick(7, 2)):
            for side, addresses in sides.items():
                for count in range(1, len(addresses) + 1):
                    rates.setdefault((side, count), []).append(_rate(addresses[:count], sent, seconds))
    for (side, count), seen in rates.items():
        result.add(f"{count} {side}, warm", "rate", "1/s", seen, tail=False)
        pairs = zip(seen, rates[side, 1], strict=True)
        result.add(f"{count} {side} over one, warm", "rate", "x", [many / one for many, one in pairs], tail=False)
    ratio, machine = (result.row(f"2 {side} over one, warm", "rate").p50 for side in sides)
    result.aim("warm rate of two pinned workers, times one's", ratio, ">= 1.9")
    result.notes.append(
        f"two bare servers give {machine:.2f} times one's rate here, so that workers keep {ratio / machine:.2f} of what the "
        f"processors give; load by {generator()}, {CONNECTIONS} connections to each worker from the worker's own processor"
    )
    if (there := len(os.sched_getaffinity(0))) < len(workers):
        result.notes.append(f"{len(workers)} workers share {there} processors: no aim for more than {there}")


def _bare(stack: ExitStack, number: int) -> Address:
    with pinned(number):
        server = stack.enter_context(in_process_server())
    return server.host, server.port


def _rate(addresses: Sequence[Address], sent: Sequence[bytes], seconds: float) -> float:
    """Return the answers per second of all of them, each called from its own processor."""
    loads = list[Load]()

    def call(number: int) -> None:
        with pinned(number):
            loads.append(drive(*addresses[number], sent, concurrency=CONNECTIONS, seconds=seconds))

    together(call, range(len(addresses)))
    return sum(load.rate for load in loads)
