"""Functions that hang, print, patch the runtime, turn the clock and call themselves."""

from __future__ import annotations

import pytest

from tests.faults import failing
from tests.faults.watching import is_at_rest, ms_until
from tests.support.cases import Happened, case
from tests.support.emulated import SLOWER
from tests.support.measured import slowness
from tests.support.private_worker import NEIGHBOUR, Answer, PrivateWorker
from tests.support.threads import at_once

pytestmark = pytest.mark.root

TIMEOUT_S = 0.4
LATE_MS = 100
"""The aim: reported, never failed."""
TOO_LATE_MS = 1000 * SLOWER
DEAD_MS = 1000 * SLOWER
"""Both of a machine that does nothing else; beside other programs as many times that as anything takes (`slowness`)."""
TRIES = 3
"""How often it is tried; the best result counts, as a pause of the whole machine delays every process."""


@case("F7", "handlers that hang in every way", expect="504 at the deadline, every process killed, none used again")
def test_hanging_handlers(worker: PrivateWorker, happened: Happened) -> None:
    late = {}
    for number, (what, code) in enumerate(failing.HANGING.items()):
        name = f"hangs-{number}"
        worker.deploy(name, code, timeout_s=TIMEOUT_S)
        took_ms: list[float] = []
        late_ms: list[float] = []
        while (not took_ms or min(took_ms) >= DEAD_MS or min(late_ms) >= TOO_LATE_MS) and len(took_ms) < TRIES:
            answer = worker.invoke(name)
            others = slowness()
            took_ms.append(ms_until(lambda: is_at_rest(worker)) / others)
            late_ms.append((answer.ms - TIMEOUT_S * 1000) / others)
            assert (answer.status, answer.error) == (504, "Sandbox.Timedout"), (what, answer.body)
            assert answer.json["errorMessage"] == f"Task timed out after {TIMEOUT_S:.2f} seconds (timeout_s)"
        assert min(took_ms) < DEAD_MS, (what, took_ms)
        assert min(late_ms) < TOO_LATE_MS, (what, late_ms)
        late[what] = late_ms[-1] + took_ms[-1]
    slowest = max(late, key=lambda what: late[what])
    beyond = "" if late[slowest] <= LATE_MS else f", more than the aim of {LATE_MS}"
    happened(f"{len(late)} kinds; answered and all dead at most {late[slowest]:.0f} ms late ({slowest}){beyond}")


@case("F8", "a timeout while importing, and one in the handler", expect="504, and the message says which")
def test_init_and_handler_time_out_apart(worker: PrivateWorker, happened: Happened) -> None:
    wait = "import threading\n{}threading.Event().wait()\ndef f(event): {}"
    worker.deploy("init", wait.format("", "pass"), init_timeout_s=0.3, timeout_s=5)
    worker.deploy("task", wait.format("0 and ", "threading.Event().wait()"), init_timeout_s=5, timeout_s=0.3)
    said = [worker.invoke(name) for name in ("init", "task")]
    happened("; ".join(answer.json["errorMessage"] for answer in said))
    assert [(answer.status, answer.error) for answer in said] == [(504, "Sandbox.Timedout")] * 2
    assert [answer.json["errorMessage"].split()[0] for answer in said] == ["Init", "Task"]


@case("F9", "log lines of 100 kB to 10 MB, NUL bytes, invalid UTF-8", expect="kept or marked; the next calls are fine")
def test_odd_output(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy(
        "prints",
        "import os\ndef f(event):\n os.write(1, b'a\\0b\\xff\\n')\n print('\\udcff')\n os.write(2, b'x' * event)\n return event",
    )
    sizes = [100_000, 1_000_000, 10_000_000, 10]
    kept = []
    for size in sizes:
        answer = worker.invoke("prints", size)
        assert (answer.status, answer.json) == (200, size)
        (record,) = worker.daemon.logs("prints", answer.headers["x-amzn-requestid"])
        assert record["text"].startswith("a\0b\\xff\n")
        assert (record["dropped_bytes"] > 0) == (size > 256 * 1024)
        kept.append(f"{len(record['text'])} + {record['dropped_bytes']} dropped")
    assert worker.cli("logs", "prints").returncode == 0
    happened(", ".join(kept))


@case("F10", "builtins, json, os, socket and time replaced under the runtime", expect="its own sandbox alone is harmed")
def test_a_patched_runtime(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("patches", failing.PATCHING)
    worker.deploy("beside", "def f(event): return len(str(event))")
    said = [worker.invoke("patches") for _ in range(3)]
    happened(", ".join(f"{answer.status} {answer.error}" for answer in said))
    assert all(answer.status == 200 or answer.error for answer in said)
    assert worker.call("beside", "abc") == 3 and worker.call(NEIGHBOUR, 5) == 5


@case("F11", "the clock set, and the runtime's clocks turned back", expect="EPERM; the deadline holds all the same")
def test_deadlines_do_not_ask_the_function_s_clock(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("clock", failing.CLOCK, timeout_s=TIMEOUT_S)
    said = worker.call("clock", "")
    answer = worker.invoke("clock", "hang")
    happened(f"clock_settime, settimeofday: {said}; {answer.json['errorMessage']} ({answer.ms:.0f} ms)")
    assert said == ["EPERM", "EPERM"]
    assert (answer.status, answer.error) == (504, "Sandbox.Timedout")
    assert answer.ms >= TIMEOUT_S * 1000


@case("F12", "a function that calls itself without end", expect="cut by its concurrency, or its timeout; no deadlock")
def test_recursion(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("refused", failing.RECURSION, concurrency=6, queue_depth=0, timeout_s=10, memory_mb=48)
    worker.deploy("queued", failing.RECURSION, concurrency=6, queue_depth=100, timeout_s=0.6, memory_mb=48)

    def call(name: str) -> Answer:
        return worker.invoke(name, {"port": worker.daemon.port, "name": name, "depth": 1})

    refused, queued = call("refused"), at_once(10, lambda n: call("queued"))
    kinds = sorted({f"{answer.status} {answer.error}".strip() for answer in queued})
    happened(f"without a queue: {refused.body.decode()}; ten at once with a queue: {', '.join(kinds)}")
    assert (refused.status, refused.json) == (200, [6, 429, "TooManyRequestsException"])
    assert all(answer.status in (200, 429, 504) for answer in queued)
    worker.daemon.remove("queued")
    rest_ms = ms_until(lambda: worker.daemon.status()["sandboxes"]["busy"] == 0)
    happened(f"at rest {rest_ms:.0f} ms after it was removed")
