"""Functions that take processes, threads and memory without end: they meet their own limit, and nobody else meets it."""

from __future__ import annotations

import pytest

from tests.faults.exhausting import FORK_BOMB, HOG, MEMORY, PAGE_CACHE, THREADS
from tests.faults.watching import attack, charged_bytes, is_at_rest, most_during, ms_until
from tests.support.cases import Happened, case
from tests.support.emulated import SLOWER, survives_fork_bombs
from tests.support.measured import slowness
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.threads import at_once

pytestmark = pytest.mark.root

MB = 1 << 20
PIDS = 48
GONE_MS = 1000 * SLOWER
"""The time on a machine that does nothing else; beside other programs as many times that as anything takes (`slowness`)."""
TRIES = 3
"""How often it is tried; the best result counts, as a pause of the whole machine delays every process."""
MEMORY_MB = 48
READ_MB = MEMORY_MB + 16
"""From a disk that others use, too: no more than shows that a function may read more than its memory."""
UNTIMED_S = 600
"""The time of functions that reach their memory limit, however slow the machine is."""


def reported(answer: Answer) -> str:
    """An answer in a few words."""
    return f"{answer.status} {answer.error or answer.body.decode()[:80]}"


@survives_fork_bombs
@case(
    "D1",
    "a fork bomb, and threads without end",
    expect="EAGAIN inside at the function's limit; every process gone within 1 s of the deadline",
)
def test_a_fork_bomb_stays_within_its_sandbox(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("bomb", FORK_BOMB, pids=PIDS, timeout_s=2 * SLOWER, cpus=0.5)
    worker.deploy("threads", THREADS, pids=PIDS)
    with attack(worker, happened):
        before = len(worker.processes("sandbox"))
        took_ms: list[float] = []
        while min(took_ms, default=GONE_MS) >= GONE_MS and len(took_ms) < TRIES:
            answer, most = most_during(lambda: worker.invoke("bomb"), lambda: len(worker.daemon.pids()))
            took_ms.append(ms_until(lambda: is_at_rest(worker)) / slowness())
        log = "".join(record["text"] for record in worker.daemon.logs("bomb"))
        started, words = worker.call("threads")
    happened(
        f"{reported(answer)}; it met {log.strip()!r} with {most} processes in the worker, gone {took_ms[-1]:.0f} ms later"
    )
    happened(f"threads: {words!r} after {started}")
    assert (answer.status, answer.error) == (504, "Sandbox.Timedout")
    assert "Resource temporarily unavailable" in log
    assert PIDS <= most <= PIDS + 2 * before + 16
    assert min(took_ms) < GONE_MS
    assert started == PIDS - 1


@case("D2", "a list that grows without end", expect="Sandbox.OutOfMemory with limit and peak; the Zygote lives")
def test_a_memory_hog_learns_that_and_its_zygote_lives(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("hog", HOG, memory_mb=MEMORY_MB)
    answers = []
    with attack(worker, happened) as watch:
        zygotes = {process.pid for process in worker.processes("root zygote")}
        for _ in watch.rounds():
            answers += [worker.invoke("hog") for _ in range(3)]
            assert {process.pid for process in worker.processes("root zygote")} == zygotes
    happened(f"{reported(answers[0])}: {answers[0].json['errorMessage']}")
    for answer in answers:
        assert (answer.status, answer.error) == (502, "Sandbox.OutOfMemory")
        assert f"limit {MEMORY_MB} MB" in answer.json["errorMessage"]


@case(
    "D3",
    "memory by mmap, page tables, mlock, /tmp, /dev/shm, memfd, System V, pipe and socket buffers; the page cache",
    expect="each counted in the function's limit: killed at it, or refused below it",
)
def test_every_kind_of_memory_counts(worker: PrivateWorker, happened: Happened) -> None:
    for kind, code in MEMORY.items():
        worker.deploy(kind, code, memory_mb=MEMORY_MB, tmp_mb=512, timeout_s=UNTIMED_S)
    worker.deploy("page-cache", PAGE_CACHE, memory_mb=MEMORY_MB, timeout_s=UNTIMED_S)
    kinds = list(MEMORY)
    with attack(worker, happened):
        before = charged_bytes(worker.daemon.cgroup)
        answers, most = most_during(
            lambda: at_once(len(kinds), lambda n: worker.invoke(kinds[n])), lambda: charged_bytes(worker.daemon.cgroup)
        )
        read = worker.call("page-cache", READ_MB)
    happened(", ".join(f"{kind}: {reported(answer)}" for kind, answer in zip(kinds, answers, strict=True)))
    happened(f"page cache: {read} MB read; at most {(most - before) >> 20} MB taken at once by {len(kinds)} functions")
    for kind, answer in zip(kinds, answers, strict=True):
        if answer.status == 200:
            assert answer.json is not None and answer.json[0] in range(MEMORY_MB), (kind, answer.json)
        else:
            assert (answer.status, answer.error) == (502, "Sandbox.OutOfMemory"), (kind, answer.body)
    assert most - before < len(kinds) * (MEMORY_MB + 16) * MB
