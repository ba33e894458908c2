"""A learned start answers as its own would: programs whose own code acts around imports, pairs with one requirements list."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.daemon.running import DeployFailed
from tests.faults.sharing import state_report
from tests.faults.sharing.answering import AnsweringWorker, Starts, Taken, difference, own_name
from tests.faults.sharing.programs import Program, own_code, pairs, projects, teachers
from tests.support.cases import Happened, case

SEED = int(os.environ.get("SOCKD_SEED", "22"))
"""The seed of the order of deploys and calls. Reported with the result; another order is tried by setting the variable."""
ROUNDS = 5
"""Fresh starts of each program."""
AFTER_RESTART = 2
"""The last of them follow a restart of the worker, which then has room for `FEW_NODES` Zygotes."""
FEW_NODES = 6
REPEATS, MOST_REPEATS = 3, 12
"""Fresh starts of a single program after a Zygote with its packages served others, and if none does."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnsweringWorker]:
    """One for all single programs: what one of them taught is there for the next."""
    yield from _running(tmp_path_factory.mktemp("answers"))


@pytest.fixture
def other_worker(tmp_path: Path) -> Iterator[AnsweringWorker]:
    """One for a whole list of programs."""
    yield from _running(tmp_path)


def _running(directory: Path) -> Iterator[AnsweringWorker]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    worker = AnsweringWorker(directory)
    try:
        yield worker
    finally:
        worker.close()


def test_there_are_programs_enough() -> None:
    single, paired = [*own_code(), *projects()], pairs()
    names = [own_name(program) for program in (*single, *paired)]
    assert len(single) >= 60 and len(paired) >= 120
    assert len(names) == len(set(names))
    assert len([program for program in single if program.learned]) >= 8


def test_differences_of_answers_and_states_are_found() -> None:
    own = Taken("1", {"interpreter": {"cwd": "/a"}, "environment": {"A": "1"}}, "root Zygote", ("p",), "")
    name = {"AWS_LAMBDA_FUNCTION_NAME": "other"}
    seen = Taken("2", {"interpreter": {"cwd": "/b"}, "environment": {"B": "2", **name}}, "p", (), "")
    assert list(difference(own, own)) == []
    assert list(difference(own, seen)) == [
        "answers 2 instead of 1",
        "interpreter cwd: /b instead of /a",
        "environment A: None instead of 1",
        "environment B: 2 instead of None",
    ]
    assert seen.is_learned and not own.is_learned


def test_threads_are_reported_while_they_run() -> None:
    lock = threading.Lock()
    assert state_report._running([lock]) == 0
    with lock:
        assert state_report._running([lock, threading.Lock()]) == 1


def deploy(worker: AnsweringWorker, programs: Sequence[Program], others: Sequence[Program]) -> None:
    """Deploy all, or skip the test where there is no package index."""
    try:
        worker.deploy(programs, others)
    except DeployFailed as error:
        if error.type == "Packages.Failed" and "index" in error.message:
            pytest.skip(f"no package index can be reached: {error.message}")
        raise


def compare(worker: AnsweringWorker, programs: list[Program], happened: Happened, *, rounds: int = ROUNDS) -> None:
    """Start each several times, learn between, start the worker again with few Zygotes; no answer may differ."""
    order = random.Random(SEED)
    others = teachers(programs)
    deploy(worker, order.sample(programs, len(programs)), others)
    found: list[str] = []
    for turn in range(rounds):
        if turn == rounds - AFTER_RESTART:
            worker.restart(FEW_NODES)
        if turn == 0:
            worker.teach(others)
        shuffled = order.sample(programs, len(programs))
        found += [f"round {turn}: {line}" for line in worker.differences(shuffled)]
        worker.settle()
    happened(f"seed {SEED}, {len(programs)} programs, {rounds} starts of each: {worker.starts}; {len(found)} differ")
    served = {*worker.starts.learned, *worker.starts.partly}
    unlearned = sorted(program.name for program in programs if program.learned and program.name not in served)
    assert not found, "\n".join(found)
    assert not unlearned, f"no Zygote with their packages served {unlearned}"
    assert not (equal := pairs_that_answer_alike(worker, programs)), (
        f"both programs of these pairs answer alike: {equal}"
    )


def pairs_that_answer_alike(worker: AnsweringWorker, programs: Sequence[Program]) -> list[str]:
    """Pairs whose answers prove nothing, as starts of their own have the same."""
    answers: dict[str, set[str]] = {}
    for program in programs:
        if program.pair:
            answers.setdefault(program.pair, set()).add(worker.own(program).answer)
    return [name for name, each in answers.items() if len(each) < 2]


QUICK_ROUNDS = 4
QUICK = [program for program in (*own_code(), *pairs()) if program.quick]


@pytest.mark.root
@pytest.mark.timeout(600)
@case(
    "P22",
    "small programs that set variables, patch or block modules before they import, and pairs with one requirements list, "
    "in random order, over a restart",
    expect="each learned start answers, and leaves the interpreter, as a start of its own",
)
def test_quick_programs(other_worker: AnsweringWorker, happened: Happened) -> None:
    compare(other_worker, QUICK, happened, rounds=QUICK_ROUNDS)


@pytest.mark.root
@pytest.mark.timeout(7200)
@case(
    "P23",
    "all programs whose own code acts before or between imports, in random order, over a restart",
    expect="each learned start answers, and leaves the interpreter, as a start of its own",
    default=False,
)
def test_programs_with_code_of_their_own(other_worker: AnsweringWorker, happened: Happened) -> None:
    compare(other_worker, own_code(), happened)


@pytest.mark.root
@pytest.mark.timeout(7200)
@case(
    "P24",
    "all pairs of programs that have one requirements list and import different things of it, in random order, over a restart",
    expect="each learned start answers, and leaves the interpreter, as a start of its own",
    default=False,
)
def test_pairs_of_programs(other_worker: AnsweringWorker, happened: Happened) -> None:
    compare(other_worker, pairs(), happened)


@pytest.mark.root
@pytest.mark.timeout(7200)
@case(
    "P27",
    "applications, plugins, modules of settings and scripts of notebooks, as projects have them, in random order, over a restart",
    expect="each learned start answers, and leaves the interpreter, as a start of its own",
    default=False,
)
def test_programs_of_projects(other_worker: AnsweringWorker, happened: Happened) -> None:
    compare(other_worker, projects(), happened)


ROWS = {
    "TQDM_DISABLE is set before tqdm": "tqdm-disable",
    "TQDM_DISABLE is set in the handler": "import-in-the-handler",
    "load_dotenv before tqdm": "dotenv-tqdm",
    "a vendored package is first on sys.path": "vendor",
    "a working directory with a module": "chdir-then-relative-path",
    "relativeCreated of a log record": "relative-created",
    "yaml beside oyaml": "yaml-oyaml",
    "PIL beside PIL.Image": "pillow-image",
    "xml beside xml.etree": "xml",
    "imports in another order": "order-of-imports",
}
BIG_ROWS = {
    "gevent patches before requests": "gevent-requests",
    "requests beside gevent": "requests-gevent",
    "load_dotenv before openai": "dotenv-openai",
    "OPENBLAS_NUM_THREADS before numpy": "numpy-openblas-threads",
    "NUMEXPR_MAX_THREADS before numexpr": "numexpr-max-threads",
    "chdir to a matplotlibrc": "chdir",
    "sys.path after setuptools": "setuptools-vendor",
    "setuptools beside its _vendor": "distutils",
    "a package is None in sys.modules": "sys-modules-none",
    "a logger class before requests": "logging-logger-class",
    "warnings are errors before pkg_resources": "warnings-as-errors",
}
"""Names of programs or pairs, by what they do."""


@pytest.mark.root
@pytest.mark.timeout(600)
@case(
    "P25",
    "one program, or a pair, called again and again while the worker learns its packages",
    expect="each start answers, and leaves the interpreter, as a start of its own",
)
@pytest.mark.parametrize("row", ROWS)
def test_a_learned_start_answers_as_its_own(worker: AnsweringWorker, row: str, happened: Happened) -> None:
    call_repeatedly(worker, ROWS[row], happened)


@pytest.mark.root
@pytest.mark.timeout(600)
@case(
    "P26",
    "the same with large packages",
    expect="each start answers, and leaves the interpreter, as a start of its own",
    default=False,
)
@pytest.mark.parametrize("row", BIG_ROWS)
def test_a_learned_start_with_large_packages_answers_as_its_own(
    worker: AnsweringWorker, row: str, happened: Happened
) -> None:
    call_repeatedly(worker, BIG_ROWS[row], happened)


def call_repeatedly(worker: AnsweringWorker, name: str, happened: Happened) -> None:
    """Deploy a program or both of a pair, and compare fresh starts before and after the worker has learned."""
    programs = [program for program in (*own_code(), *pairs()) if name in (program.name, program.pair)]
    others = teachers(programs)
    deploy(worker, programs, others)
    worker.starts = Starts()
    found: list[str] = []
    served = 0
    for _ in range(MOST_REPEATS):
        served += worker.teach(others or programs)
        found += worker.differences(programs)
        worker.settle()
        if served > REPEATS:
            break
        worker.settle()
    happened(f"{name}: {worker.starts}")
    assert not found, "\n".join(dict.fromkeys(found))
    assert pairs_that_answer_alike(worker, programs) == []
