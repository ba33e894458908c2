"""A worker that learns, and in it each program twice: one that Zygotes with packages serve, and one with `zygote = "none"`.

Owns the worker. Both are forked from the same root Zygote, so they share its hash secret. The starts of the second one are
right by definition; they are taken anew after each restart of the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.daemon.running import RunningDaemon
from tests.faults.sharing.excluded import is_excluded
from tests.faults.sharing.programs import Program

PATIENCE_S = 600.0
"""The time limit of a start and of a request: on a busy machine the largest packages take minutes, and no answer depends on
that."""
SETTINGS: dict[str, Any] = {"memory_mb": 1024, "timeout_s": PATIENCE_S, "init_timeout_s": PATIENCE_S}
AT_ONCE = 3
"""Programs that are deployed, or called, at once."""
CONFIG = "[zygote]\nspares = 1\nmemory_mb = 4096\nmax_nodes = {max_nodes}\n"
LEARN_DEADLINE_S = 3600.0
"""For all programs of a list: on a busy machine, each takes seconds."""
ROOT = "root Zygote"
"""What a trace calls the Zygote without packages."""
OWN = "-own"
"""How the names of functions end whose starts are their own."""
SHOWN = 5

State = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Taken:
    """What one fresh start answered, and which Zygote it was forked from."""

    answer: str
    state: State
    zygote: str
    imported: tuple[str, ...]
    """Packages of which it imported modules itself."""
    passed_over: str

    @property
    def is_learned(self) -> bool:
        """Whether a Zygote with all that it imports served it."""
        return self.zygote != ROOT and not self.imported


@dataclass
class Starts:
    """How many starts there were of each kind, and why Zygotes did not serve."""

    learned: Counter[str] = field(default_factory=Counter)
    """By program."""
    partly: Counter[str] = field(default_factory=Counter)
    """By program: a Zygote with some of what it imports served."""
    of_their_own: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)

    def count(self, name: str, taken: Taken) -> None:
        """Count one start."""
        if taken.is_learned:
            self.learned[name] += 1
        elif taken.zygote != ROOT:
            self.partly[name] += 1
        else:
            self.of_their_own += 1
        if taken.passed_over:
            self.passed_over[taken.passed_over] += 1

    def __str__(self) -> str:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in self.passed_over.most_common(SHOWN))
        return (
            f"{self.learned.total()} starts of {len(self.learned)} programs learned, {self.partly.total()} in part, "
            f"{self.of_their_own} of their own ({reasons or 'no Zygote passed over'})"
        )


class AnsweringWorker:
    """`deploy` programs, then `differences` as often as wanted, `settle`, `restart` between them."""

    def __init__(self, directory: Path, *, max_nodes: int = 64) -> None:
        self._state = directory / "state"
        self.starts = Starts()
        self._steady: set[str] = set()
        """Functions of which two starts of their own were equal."""
        self._own: dict[str, Taken] = {}
        self.daemon = RunningDaemon.start(self._state, CONFIG.format(max_nodes=max_nodes))

    def deploy(self, programs: Iterable[Program], teachers: Iterable[Program]) -> None:
        """Deploy each program as a function that learns, and as one that does not, and each teacher. Raises: DeployFailed."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._deploy_teacher, teachers))
            list(pool.map(self._deploy, programs))

    def _deploy_teacher(self, teacher: Program) -> None:
        self.daemon.deploy(teacher.name, teacher.files(), **SETTINGS)

    def _deploy(self, program: Program) -> None:
        self.daemon.deploy(program.name, program.files(), **SETTINGS)
        self.daemon.deploy(own_name(program), program.files(), zygote="none", **SETTINGS)

    def teach(self, teachers: Iterable[Program]) -> bool:
        """Start each once: the worker learns its imports.

        Returns: whether Zygotes with all that they import served all of them."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return all(pool.map(self._is_taught, [teacher.name for teacher in teachers]))

    def _is_taught(self, name: str) -> bool:
        """Whether a teacher was learned, or can never be: its imports fail without the code of its program."""
        try:
            return self.taken(name).is_learned
        except AssertionError:
            return True

    def settle(self) -> None:
        """Wait until the worker has made and verified the Zygotes that it finds worth it."""
        self.daemon.when(self._is_settled, deadline_s=LEARN_DEADLINE_S)

    def _is_settled(self) -> bool:
        status = self.daemon.status()
        return not status["learning"] and not status["verifying"]

    def restart(self, max_nodes: int) -> None:
        """End the worker, and start it again with what it has learned and so many Zygotes at most."""
        self.daemon.close()
        self._own.clear()
        self.daemon = RunningDaemon.start(self._state, CONFIG.format(max_nodes=max_nodes))

    def close(self) -> None:
        self.daemon.close()

    def differences(self, programs: Iterable[Program]) -> Iterator[str]:
        """Start each program once. Returns: one line for each that answers otherwise than a start of its own."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from filter(None, pool.map(self._compared, programs))

    def _compared(self, program: Program) -> str:
        """One line for a program, empty if all is equal; a start that fails is a line, too, so that the others are compared."""
        try:
            own, seen = self.own(program), self.taken(program.name)
        except AssertionError as error:
            return str(error)
        self.starts.count(program.name, seen)
        lines = list(difference(own, seen))
        if not lines:
            return ""
        more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        return f"{program.name}, forked from {seen.zygote}: {'; '.join(lines[:SHOWN])}{more}"

    def own(self, program: Program) -> Taken:
        """A start of the program's own, of this life of the worker.

        Raises: AssertionError: two such starts differ, or the answer is not what the table says: the program proves nothing."""
        name = own_name(program)
        if name not in self._own:
            taken = self._own[name] = self.taken(name)
            if program.own is not None:
                assert taken.answer == program.own, f"{name} answers {taken.answer} instead of {program.own}"
            if name not in self._steady:
                unsteady = list(difference(taken, self.taken(name)))
                assert not unsteady, f"two starts of {name} differ: {'; '.join(unsteady[:SHOWN])}"
                self._steady.add(name)
        return self._own[name]

    def taken(self, name: str) -> Taken:
        """Call a function in a fresh sandbox. Raises: AssertionError: it failed."""
        reply = self.daemon.request("POST", f"/run/{name}", "{}", {"x-sockd-fresh": "1"}, patience_s=PATIENCE_S)
        assert reply.status == 200, f"{name} failed: {reply.body[:500]!r}"
        trace = self.daemon.manage("GET", f"/traces/{reply.headers['x-amzn-requestid']}").json
        imported = tuple(sorted(each["package"] for each in trace["imported"]))
        assert trace["zygote"] == ROOT or not name.endswith(OWN), f"{name} was served by {trace['zygote']}"
        return Taken(reply.json["answer"], reply.json["state"], trace["zygote"], imported, trace["passed_over"])


def own_name(program: Program) -> str:
    """The name of the function whose starts are its own."""
    return program.name + OWN


def difference(own: Taken, seen: Taken) -> Iterator[str]:
    """What a start answers otherwise than a start of its own, one line each."""
    if own.answer != seen.answer:
        yield f"answers {seen.answer} instead of {own.answer}"
    for part, values in own.state.items():
        here = seen.state[part]
        for name in sorted(values.keys() | here.keys()):
            if values.get(name) != here.get(name) and not is_excluded(part, name):
                yield f"{part} {name}: {here.get(name)} instead of {values.get(name)}"
