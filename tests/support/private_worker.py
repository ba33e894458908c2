"""The worker that the fault-injection suite attacks: a real daemon of its own, seen as its users and the kernel see it.

Owns the daemon, its package index and what is deployed to it. `worker` is the fixture: the folder's one worker, emptied
after each case and asked whether it still does what a worker does: it is alive, a well-behaved function (the neighbour)
is answered, no process, cgroup, descriptor or mount is left over. The neighbour's caller is a process that lives as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.ways import Ways
from tests.daemon.kernel_view import open_fds
from tests.daemon.running import COMMAND, DEADLINE_S, REPO, RunningDaemon
from tests.support import sockd_template
from tests.support.caller import Caller
from tests.support.emulated import SLOWER
from tests.support.ledger import Ledger
from tests.support.older_kernel import release
from tests.support.servers.package_index import PackageIndex
from tests.support.watch import Watch
from tests.support.worker_processes import Process, look_at

NEIGHBOUR = "neighbour"
GAP_S = 0.003
"""Between two calls of it, if a case does not ask for another."""
CONFIG = f"[zygote]\nspares = 2\nimport_deadline_s = {5.0 * SLOWER}\ncanary_deadline_s = {5.0 * SLOWER}\n"
SETTLE_S = 30.0 * SLOWER
BROKEN_SETTLE_S = 10.0
BROKEN_PATIENCE_S = 5.0
"""The patience of a case with a worker that most likely never finds it out, as it lacks what would."""
FDS_FOR_EACH = 5
"""Most descriptors that the daemon holds for a Zygote, a spare or an idle sandbox, cgroup files left out: their pool keeps
them, and its size is a setting."""
FDS_AT_EASE = 68 + (12 if Ways.find(release()).roots.reason else 0)
"""And those that are there always or come and go: loops, databases, roots made ahead (two of an attached one), connections."""
_TICK_S = 0.02


@dataclass(frozen=True)
class Answer:
    """What came back of an invocation; `ms` is how long that took."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    ms: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """errorType of an error, "" of an answer."""
        return str(self.json.get("errorType", "")) if self.status != 200 else ""


def command_without(protection: str) -> tuple[str, ...]:
    """What starts a worker that lacks a protection (`broken.py`); with "", a whole one."""
    return (COMMAND[0], "-m", "tests.support.broken", protection, *COMMAND[3:]) if protection else COMMAND


class PrivateWorker:
    """One running worker and what a case needs of it."""

    def __init__(
        self,
        directory: Path,
        config: str = "",
        *,
        broken: str = "",
        command: Sequence[str] = COMMAND,
        zygotes: str = CONFIG,
    ) -> None:
        """Args: config: TOML behind `zygotes`; broken: a protection that this worker is to lack (`broken.py`);
        command: what starts it, if it is not `sockd up`."""
        self._directory = directory
        self.index = PackageIndex()
        self._config = f'[packages]\nindex_url = "{self.index.url}"\n{zygotes}{config}'
        self._command = command
        if broken:
            self._command = command_without(broken)
        self.patience_s = BROKEN_PATIENCE_S if broken else DEADLINE_S
        """How long a case waits for what this worker is to find out."""
        self._settle_s = BROKEN_SETTLE_S if broken else SETTLE_S
        self._starts = 0
        self._baseline: list[float] = []
        self.daemon = self._start()

    def _start(self) -> RunningDaemon:
        self._starts += 1
        self._ended = False
        state = self._directory / f"state-{self._starts}"
        daemon = RunningDaemon.start(state, self._config, command=self._command)
        daemon.deploy(NEIGHBOUR, "def f(event): return event")
        # With the worker, and not when first asked for: what comes while a test runs is to be gone after it.
        self.caller = Caller.start(daemon.port, NEIGHBOUR)
        return daemon

    # -- its APIs

    def deploy(
        self,
        name: str,
        code: str | bytes | Mapping[str, str | bytes],
        *,
        requirements: Iterable[str] = (),
        wheels: Iterable[tuple[str, bytes]] = (),
        **settings: Any,
    ) -> dict[str, Any]:
        """Publish a function.

        Args:
            code: the text of its f.py, its files, or a zip; requirements: lines of requirements.txt;
            wheels: (file name, bytes) that the worker's index has from now on; settings: as in sockd.toml.
        Raises: DeployFailed."""
        for each in wheels:
            self.index.add(each)
        files: Mapping[str, str | bytes] | bytes = {"f.py": code} if isinstance(code, str) else code
        if (lines := list(requirements)) and not isinstance(files, bytes):
            files = {**files, "requirements.txt": "\n".join(lines)}
        return self.daemon.deploy(name, files, **settings)

    def invoke(self, name: str, event: object = None, **headers: str) -> Answer:
        """One invocation, whatever comes of it."""
        started = time.perf_counter()
        answer = self.daemon.run(name, event, **headers)
        return Answer(answer.status, answer.body, answer.headers, (time.perf_counter() - started) * 1000)

    def call(self, name: str, event: object = None) -> Any:
        """The answer of an invocation that must succeed."""
        return self.daemon.call(name, event)

    def call_learned(self, name: str, event: object = None) -> Any:
        """The answer of one more start, from a Zygote that has imported packages for the function. Raises: AssertionError."""
        return self.daemon.call_learned(name, event)

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The `sockd` command, against this worker."""
        command = [sys.executable, "-m", "sockd", *arguments]
        env = {**os.environ, "SOCKD_STATE_DIR": str(self.daemon.state)}
        return sockd_template.run(command, env=env, cwd=REPO, check=check)

    def json(self, path: str) -> Any:
        """GET of the management socket."""
        return self.daemon.manage("GET", path).json

    @property
    def alive(self) -> bool:
        return self.daemon.process.poll() is None

    # -- its processes

    def processes(self, *kinds: str) -> list[Process]:
        """All of its processes but the daemon itself, or those of some kinds."""
        found = filter(None, (look_at(pid) for pid in sorted(self.daemon.pids())))
        return [process for process in found if not kinds or process.kind in kinds]

    # -- the neighbour

    @contextmanager
    def watching(self, gap_s: float = GAP_S, baseline: list[float] | None = None) -> Iterator[Watch]:
        """Call the neighbour again and again while the body runs; what came of it is there afterwards.

        Args: baseline: ms of undisturbed calls to compare with, if not the worker's own."""
        watch = Watch(self.caller, self.baseline if baseline is None else baseline)
        watch.begin(gap_s)
        try:
            yield watch
        finally:
            watch.end()

    @property
    def baseline(self) -> list[float]:
        """Sorted ms of 200 undisturbed calls of the neighbour; measured once, before the first case that asks."""
        if not self._baseline:
            self._baseline = Watch.undisturbed(self.caller, GAP_S, 200)
        return self._baseline

    # -- its leftovers

    def settle(self) -> None:
        """Remove all functions but the neighbour, and all packages, and wait until nothing of them is left.

        Raises: AssertionError."""
        for function in self.json("/functions"):
            if function["name"] != NEIGHBOUR:
                self.daemon.remove(function["name"])
        for package in self.json("/packages"):
            self.daemon.manage("DELETE", f"/packages/{package['key']}")
        ends = time.monotonic() + self._settle_s
        tick = threading.Event()
        while left := self.leftovers():
            assert time.monotonic() < ends, f"left over: {left}"
            tick.wait(_TICK_S)

    def leftovers(self) -> str:
        """What is there and belongs to nothing that the worker tells of; empty when the worker is in order."""
        status = self.daemon.status()
        sandboxes = status["sandboxes"]
        ready = sandboxes["idle"] + sandboxes["paused"] + sandboxes["spare"]
        if sandboxes["idle"] + sandboxes["paused"] > 1:
            return f"sandboxes {sandboxes}"
        if status["cgroups"]["recycling"]:
            return f"{status['cgroups']['recycling']} cgroups are not empty yet"
        processes = [process for process in self.processes() if process.kind != "engine"]
        known = 2 + status["zygotes"] + ready
        if len(processes) > known:
            reported = [f"{process.pid} {process.kind} {process.status['Name']}" for process in processes]
            return f"{len(processes)} processes where {known} are known: {reported}"
        most = FDS_AT_EASE + FDS_FOR_EACH * (status["zygotes"] + ready) + status["networks"]["ready"]
        fds = [target for target in open_fds(self.daemon.pid) if not target.startswith("/sys/fs/cgroup/")]
        if len(fds) > most:
            return f"{len(fds)} descriptors of the daemon, at most {most} are known: {Counter(map(_kind, fds))}"
        return ""

    def end(self) -> None:
        """End the daemon, and sweep what is left of it. `be_there` starts the next one, if another case asks for it."""
        self.caller.close()
        self.daemon.close()
        self._baseline = []
        self._ended = True

    def be_there(self) -> None:
        """Have a new daemon on a new state directory, if the last one was ended."""
        if self._ended:
            self.daemon = self._start()

    def close(self) -> None:
        self.caller.close()
        self.daemon.close()
        self.index.close()


def _kind(target: str) -> str:
    """socket for socket:[123]."""
    return target.partition(":")[0]


class LedgerBesideWorkers(Ledger):
    """As everywhere, but what a daemon that outlives the test has started is that daemon's own."""

    def survivors(self) -> list[Any]:
        theirs = {str(pid) for daemon in RunningDaemon.living for pid in daemon.pids()}
        return [entry for entry in super().survivors() if entry.kind != "process" or entry.key not in theirs]


@pytest.fixture(autouse=True)
def ledger(request: pytest.FixtureRequest) -> Iterator[LedgerBesideWorkers]:
    """The count before and after each test; the folder's worker is there before it."""
    if "package_worker" in request.fixturenames:
        request.getfixturevalue("package_worker").be_there()
    ledger = LedgerBesideWorkers()
    yield ledger
    ledger.check()


@pytest.fixture(scope="package")
def package_worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateWorker]:
    """The folder's one worker."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    broken = request.config.getoption("broken", default="")
    worker = PrivateWorker(tmp_path_factory.mktemp("worker"), broken=broken)
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture
def worker(package_worker: PrivateWorker, ledger: Ledger) -> Iterator[PrivateWorker]:
    """The folder's worker. After the case: is it alive, does it answer, is nothing left? If not, the next case gets another."""
    mark = package_worker.daemon.mark
    yield package_worker
    try:
        assert package_worker.alive, "the daemon ended:\n" + "\n".join(package_worker.daemon.lines[mark:])
        assert package_worker.caller.alive, "the neighbour's caller died"
        package_worker.settle()
        assert package_worker.call(NEIGHBOUR, 7) == 7
        raised = [line for line in package_worker.daemon.lines[mark:] if "Traceback" in line]
        assert not raised, "the daemon's log holds a traceback:\n" + "\n".join(package_worker.daemon.lines[mark:])
    except BaseException:
        package_worker.end()
        raise
