"""G13: a history of thousands of invocations while somebody kills processes at random."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.daemon.prefetching import READY
from tests.daemon.running import RunningDaemon
from tests.faults.daemon.history import WORK, History
from tests.faults.daemon.lives import GONE, Lives
from tests.faults.daemon.telling import TYPED
from tests.initscripts.guests import module
from tests.support.cases import Happened, case
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.worker_processes import look_at

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

CLIENTS = 4
CALLS, ALL_CALLS = 2000, 40_000
GAP_S = (0.005, 0.06)
"""Between two kills, the least and the most."""
LIFE_S = (1.0, 4.0)
"""The life of a daemon, where it is killed, too."""
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
CONFIG = "[sandbox]\npause_after_s = 0.01\nmemory_mb = 4096\n[zygote]\nspares = 2\nmemory_mb = 96\n"
SALTS = {"plain": "a", "package": "b", "script": "c"}
KILLED = {"sandbox": 6, "zygote": 2, "root zygote": 1, "engine": 1}
"""Whom the nemesis takes, and how often in comparison."""


def deploy(daemon: RunningDaemon, index: PackageIndex, history: History) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": SLOW}))
    code = {name: WORK.replace("{salt}", salt) for name, salt in SALTS.items()}
    daemon.deploy("plain", {"f.py": code["plain"]}, concurrency=CLIENTS)
    daemon.deploy("package", {"f.py": "import lib\n" + code["package"], "requirements.txt": "lib"}, timeout_s=10)
    script: dict[str, str | bytes] = {"f.py": code["script"], "init.wasm": module("", notes=False)}
    daemon.deploy("script", script, initscript={"wasm": "init.wasm"}, storage="sockd")
    for name, salt in SALTS.items():
        answer = daemon.run(name, {"token": f"first-{name}", "takes_s": 0})
        history.note(f"first-{name}", salt, answer.status, answer.body)


def call(lives: Lives, history: History, client: int, calls: int, seed: str, stop: threading.Event) -> None:
    """One client: its requests one after the other, over one connection as long as that lasts."""
    rng = random.Random(f"{seed}-{client}")
    connection, port = http.client.HTTPConnection("127.0.0.1", lives.daemon.port, timeout=30), lives.daemon.port
    for number in range(calls):
        if stop.is_set():
            break
        if lives.daemon.port != port:
            connection.close()
            port = lives.daemon.port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        token, name = f"{client}-{number}", rng.choice(list(SALTS))
        event = {"token": token, "takes_s": rng.choice((0, 0, 0, 0.002, 0.01))}
        try:
            connection.request("POST", f"/run/{name}", json.dumps(event))
            response = connection.getresponse()
            history.note(token, SALTS[name], response.status, response.read())
        except (*GONE, OSError) as error:
            history.note_lost(token, error)
            connection.close()
            stop.wait(0.02)
    connection.close()


class Nemesis:
    """Kills processes of a worker at random, until it is stopped."""

    def __init__(self, lives: Lives, seed: str, *, daemons: bool) -> None:
        self._lives = lives
        self._rng = random.Random(seed)
        self._daemons = daemons
        self.killed: Counter[str] = Counter()

    def rage(self, stop: threading.Event) -> None:
        end_of_life = time.monotonic() + self._rng.uniform(*LIFE_S)
        while not stop.wait(self._rng.uniform(*GAP_S)):
            if self._daemons and time.monotonic() > end_of_life:
                self._lives.kill()
                self._lives.start()
                self.killed["daemon"] += 1
                end_of_life = time.monotonic() + self._rng.uniform(*LIFE_S)
                continue
            self._kill_one()

    def _kill_one(self) -> None:
        kind = self._rng.choices(list(KILLED), list(KILLED.values()))[0]
        pids = sorted(self._lives.daemon.pids())
        self._rng.shuffle(pids)
        for pid in pids:
            process = look_at(pid)
            if process is not None and process.kind == kind:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.killed[kind] += 1
                return


@contextmanager
def raging(nemesis: Nemesis) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        rage = pool.submit(nemesis.rage, stop)
        try:
            yield
        finally:
            stop.set()
            rage.result(60)


@case(
    "G13",
    "thousands of invocations of several clients while handlers, Zygotes and the engine (--all: the daemon) are killed",
    expect="none is answered wrongly, none is run or answered twice, every failure has a type",
)
def test_a_history(state: Path, index: PackageIndex, happened: Happened, everything: bool) -> None:
    seed = os.urandom(4).hex()
    lives = Lives(state, index, CONFIG)
    history = History(TYPED, daemon_may_die=everything)
    try:
        daemon = lives.start()
        deploy(daemon, index, history)
        daemon.wait_line(READY)
        nemesis = Nemesis(lives, seed, daemons=everything)
        calls = (ALL_CALLS if everything else CALLS) // CLIENTS
        stop = threading.Event()
        with raging(nemesis), ThreadPoolExecutor(CLIENTS) as pool:
            try:
                clients = [pool.submit(call, lives, history, n, calls, seed, stop) for n in range(CLIENTS)]
                for client in clients:
                    client.result()
            finally:
                stop.set()
        happened(f"seed {seed}: {history}; killed: {dict(nemesis.killed)}")
        if lives.restarts_s:
            happened(lives.reported)
        lives.check_logs()
        history.check()
        for name in SALTS:  # and afterwards all is as if nothing had been
            answer = lives.daemon.run(name, {"token": "last", "takes_s": 0})
            assert answer.status == 200 or lives.daemon.call(name, {"token": "last", "takes_s": 0}), answer
        lives.end()
    finally:
        lives.close()
