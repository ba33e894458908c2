"""`isolation`: the kernel's primitives of isolation, as measured for SOCK (Figs. 1 to 5), on this kernel.

Each figure led to a decision in the design of SOCK; the aims are the ratios on which sockd bases the same decision. The
operations run in processes of isolation_driver.py, the cases of a figure in turns.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from benchmarks.harness.results import Result, Row
from benchmarks.harness.run import Run, main
from benchmarks.peers.starters import HERE, PYTHON, Starter

MOST_TASKS = 10
PAPER = (
    "SOCK Fig. 1: bind mounts about 2x as fast as aufs, which has been replaced by overlay",
    "SOCK Fig. 2: the rate of mount and unmount falls with the number of idle mount namespaces",
    "SOCK Fig. 3: clean-up of ipc and mount namespaces takes tens of ms (RCU), of network namespaces more than that",
    "SOCK Fig. 4: at most 200 containers/s with network namespaces, 900 without",
    "SOCK Fig. 5: use of an existing cgroup at least 2x as fast as creation and removal",
)


def measure(run: Run) -> Result:
    result = Result("isolation", notes=list(PAPER))
    with driver() as kernel:
        figure = Figures(run, kernel, result)
        figure.storage()
        figure.mount_namespaces()
        figure.namespaces()
        figure.networks()
        figure.cgroups()
    return result


@contextmanager
def driver() -> Iterator[Starter]:
    """The process that runs the operations, with a directory for its mounts."""
    with (
        tempfile.TemporaryDirectory(prefix="sockd-isolation-") as directory,
        Starter.launch("isolation", PYTHON, "-I", "-S", str(HERE / "isolation_driver.py"), directory) as starter,
    ):
        yield starter


class Figures:
    """Measures the figures with one driver and adds their rows and aims to the result."""

    def __init__(self, run: Run, kernel: Starter, result: Result) -> None:
        self._run = run
        self._kernel = kernel
        self._result = result
        self._random = Random(0)
        self._tasks: Sequence[int] = run.pick((1, 2, 5, MOST_TASKS), (1, MOST_TASKS))

    def storage(self) -> None:
        """Fig. 1: what a sandbox's root is made of."""
        self._run.say("Fig. 1: bind mounts, overlay, detached trees")
        kinds = ("bind", "overlay", "detached tree")
        for tasks in self._tasks:
            self._in_turns(kinds, tasks)
        self._ratio("bind mounts/s, times overlay", "bind", "overlay", ">= 2")
        self._ratio("detached trees/s, times overlay", "detached tree", "overlay", ">= 2")

    def mount_namespaces(self) -> None:
        """Fig. 2: the cost of idle mount namespaces to others."""
        counts = self._run.pick((0, 100, 1000, 10_000), (0, 1000))
        self._run.say(f"Fig. 2: with up to {counts[-1]} idle mount namespaces")
        rates: dict[tuple[str, int], Row] = {}
        for count in counts:
            self._ask("idle", count)
            for kind in ("mount namespace", "detached tree"):
                rates[kind, count] = self._in_turns([kind], MOST_TASKS, f", {count} idle mount namespaces")[kind]
        self._ask("idle", 0)
        busy = counts[-1]
        share = rates["detached tree", busy].p50 / rates["detached tree", 0].p50
        self._result.aim(f"detached trees/s with {busy} idle mount namespaces, times none", share, ">= 0.8")
        ratio = rates["detached tree", busy].p50 / rates["mount namespace", busy].p50
        self._result.aim(f"detached trees/s, times mount namespaces, {busy} idle", ratio, ">= 2")

    def namespaces(self) -> None:
        """Fig. 3: one kind of namespace per process, beside a process without."""
        self._run.say("Fig. 3: ipc, mount and network namespaces")
        kinds = ("process", "ipc namespace", "mount namespace", "network namespace")
        for tasks in self._tasks:
            self._in_turns(kinds, tasks)

    def networks(self) -> None:
        """Fig. 4: containers with and without a network namespace."""
        self._run.say("Fig. 4: containers with and without network namespaces")
        for tasks in self._tasks:
            self._in_turns(("container", "container with network"), tasks)
        self._ratio("containers/s without, times with a network", "container", "container with network", ">= 2")

    def cgroups(self) -> None:
        """Fig. 5: new cgroups against one that exists."""
        self._run.say("Fig. 5: cgroups")
        for tasks in self._tasks:
            self._in_turns(("cgroup used again", "cgroup made"), tasks)
        self._ratio("uses of a cgroup/s, times creations", "cgroup used again", "cgroup made", ">= 2")

    def _ratio(self, name: str, faster: str, slower: str, aim: str) -> None:
        metric = rate_metric(MOST_TASKS)
        ratio = self._result.row(faster, metric).p50 / self._result.row(slower, metric).p50
        self._result.aim(f"{name}, {MOST_TASKS} at once", ratio, aim)

    def _in_turns(self, kinds: Sequence[str], tasks: int, beside: str = "") -> dict[str, Row]:
        """Run the kinds in a random order each round, and add their rows. Returns those of the rates by kind."""
        rates: dict[str, list[float]] = defaultdict(list)
        phases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for _ in range(self._run.pick(5, 3)):
            for kind in self._random.sample(kinds, len(kinds)):
                answer = self._ask("run", kind, tasks, self._run.pick(1.0, 0.15))
                rates[kind].append(answer.pop("rate"))
                for phase, times in answer.items():
                    phases[kind][phase] += times
        rows = {}
        for kind in kinds:
            rows[kind] = self._result.add(kind + beside, rate_metric(tasks), "1/s", rates[kind], tail=False)
            for phase, times in phases[kind].items():
                self._result.add(f"{kind}{beside}", f"{phase}, {tasks} at once", "us", times)
        return rows

    def _ask(self, *command: object) -> dict[str, Any]:
        return self._kernel.ask(json.dumps(command))


def rate_metric(tasks: int) -> str:
    return f"rate, {tasks} at once"


if __name__ == "__main__":
    sys.exit(main("isolation", measure, "The kernel's primitives of isolation, after SOCK's Figs. 1 to 5."))
