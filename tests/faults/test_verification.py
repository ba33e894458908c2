"""What the rule does not see, verification finds: a fork is compared with a start of the function's own before it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sockd.starts.zygotes.top_levels.refusals import AFTER_DEADLINE_S
from tests.daemon.running import DEADLINE_S
from tests.faults.packages import SLOW
from tests.support.cases import Happened, case
from tests.support.emulated import SLOWER
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SETTINGS: dict[str, Any] = {"memory_mb": 128, "timeout_s": 20}
LOOKS = "import importlib.util\nSAW = 'opt is there' if importlib.util.find_spec('opt') else None\n"
"""The function loads nothing more where opt exists, which its top level would show."""
HANGING = "import sys, threading\nif 'sockd_zygote.top_levels.trial' in sys.modules:\n    threading.Event().wait()\n"
HANDLER = "import p\ndef f(event): return p.SAW\n"


@contextmanager
def a_worker(directory: Path, config: str = "", broken: str = "") -> Iterator[PrivateWorker]:
    worker = PrivateWorker(directory, config, broken=broken)
    try:
        yield worker
    finally:
        worker.close()


def learn(worker: PrivateWorker, code: str) -> None:
    """Have a Zygote of a package, made from a function of it alone, and verified for that."""
    worker.deploy("first", HANDLER, requirements=["p"], wheels=[wheel("p", "1.0", {"p.py": SLOW + code})])
    worker.call("first")
    worker.call_learned("first")


def wait_until(condition: Callable[[], bool]) -> None:
    ends, tick = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, "it did not come to be"
        tick.wait(0.02)


def title_of(pid: int) -> str:
    """What ps shows; empty for a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def outcomes(worker: PrivateWorker) -> dict[str, float]:
    """How many verifications came to what."""
    text = worker.daemon.request("GET", "/metrics").body.decode()
    lines = (line for line in text.splitlines() if line.startswith("sockd_zygote_verifications_total{"))
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def zygote_of(worker: PrivateWorker, answer: Answer) -> str:
    """What served an invocation that started a sandbox."""
    assert answer.status == 200, answer
    zygote: str = worker.json(f"/traces/{answer.headers['x-amzn-requestid']}")["zygote"]
    return zygote


def passed_over(worker: PrivateWorker, name: str) -> str:
    return "; ".join(larger["reason"] for larger in worker.json(f"/functions/{name}/imports")["passed_over"])


@case(
    "P40",
    "take from the worker's rule the names that imports look up, learn a package, and deploy it with what it looks for",
    expect="verification finds the other answer, no start gives it, and the worker names it everywhere",
)
def test_what_the_rule_lets_through_is_found(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, broken="names-unobserved") as worker:
        learn(worker, LOOKS)
        worker.deploy(
            "then", HANDLER, requirements=["p", "opt"], wheels=[wheel("opt", "1.0", {"opt.py": ""})], **SETTINGS
        )
        assert worker.call("then") == "opt is there", "served before it was verified"
        answer = worker.daemon.run_learned("then")
        assert outcomes(worker)["different"] >= 1
        assert answer.json == "opt is there"
        words = "p.SAW: None instead of 'opt is there'"
        reason = passed_over(worker, "then")
        happened(reason)
        assert words in reason
        assert words in worker.json(f"/traces/{answer.headers['x-amzn-requestid']}")["passed_over"]
        assert words in worker.cli("tree").stdout
        assert "p.SAW" in worker.cli("packages", "ls", "--json").stdout
        forgiven = worker.cli("packages", "forgive", "p").stdout
        # Only the first module that differs is reported: that of p or that of opt, whichever comes first.
        assert forgiven.startswith(("forgiven: p-1.0", "forgiven: opt-1.0"))
        assert not any(row.get("differs") for row in worker.json("/packages"))
        assert worker.daemon.run_learned("then").json == worker.daemon.run_learned("then").json == "opt is there"


SECRET = "hunter2-and-more"


@case(
    "P40", "take from the rule the variables that imports read", expect="found, too, and no value of a variable is told"
)
def test_a_difference_tells_no_value_of_a_variable(tmp_path: Path, happened: Happened) -> None:
    code = "import os\nSAW = os.environ.get('P_KEY')\nPART = SAW and SAW.split('-')[0]\n"
    with a_worker(tmp_path, broken="variables-unobserved") as worker:
        learn(worker, code)
        worker.deploy("then", HANDLER, requirements=["p"], env={"P_KEY": SECRET})
        assert worker.call("then") == SECRET
        worker.daemon.wait_verified()
        reason = passed_over(worker, "then")
        happened(reason)
        assert "p.SAW: None instead of $P_KEY" in reason and "p.PART: None instead of a str" in reason
        assert worker.daemon.run_learned("then").json == SECRET
        reported = "\n".join(worker.daemon.lines) + worker.cli("tree").stdout + worker.cli("packages", "ls").stdout
        assert "P_KEY" in reported and SECRET.split("-")[0] not in reported


@case(
    "P41",
    "learn a package, and deploy it with another package, and with a variable that nobody reads",
    expect="the first start is its own, the Zygote is verified after it, and the next start is forked from that; so is the first "
    "one of the same version, deployed again",
)
@pytest.mark.parametrize("kind", ["packages", "variables"])
def test_a_zygote_that_is_alike_is_used(tmp_path: Path, kind: str, happened: Happened) -> None:
    with a_worker(tmp_path) as worker:
        learn(worker, "SAW = 1\nclass A:\n    x = {1, 2, 'a'}\nNUMBERS = {A, int, str, repr}\n")
        more: dict[str, Any] = {"requirements": ["p", "other"]} if kind == "packages" else {"env": {"UNREAD": "1"}}
        settings = {"requirements": ["p"], **more}
        worker.deploy("then", HANDLER, **settings, wheels=[wheel("other", "1.0", {"other.py": ""})])
        assert zygote_of(worker, worker.invoke("then")) == "root Zygote", "served before it was verified"
        assert worker.call_learned("then") == 1
        for _ in range(5):
            assert zygote_of(worker, worker.invoke("then", x_sockd_fresh="1")) == "p"
        counts = outcomes(worker)
        happened(str(counts))
        assert counts == {"recorded": 2, "alike": 2, "different": 0, "late": 0, "postponed": 0}
        worker.daemon.remove("then")
        worker.deploy("then", HANDLER, **settings)
        assert zygote_of(worker, worker.invoke("then")) == "p", "what is known of this version is known of it again"


@case(
    "P42",
    "have the import of a package hang in each trial",
    expect="its recording ends by its deadline and is tried again later; others are recorded, and each start is answered",
)
def test_an_import_that_hangs_ends_its_recording(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, f"verify_deadline_s = {2.0 * SLOWER}\n") as worker:
        wheels = [wheel("p", "1.0", {"p.py": SLOW + HANGING + "SAW = 1\n"}), wheel("good", "1.0", {"good.py": SLOW})]
        worker.deploy("hangs", HANDLER, requirements=["p"], wheels=wheels)
        assert worker.call("hangs") == 1
        line = worker.daemon.wait_line("the top level of hangs@.* was not recorded: (.*)")[1]
        happened(line)
        assert line.startswith("the function's top level: a start of its own did not come to its end: Task timed out")
        sharing = worker.json("/functions/hangs/imports")["sharing"]
        assert sharing.startswith("its top level could not be recorded: ") and "Task timed out" in sharing
        worker.deploy("good", "import good\ndef f(event): return 2\n", requirements=["good"])
        assert worker.call("good") == worker.call_learned("good") == 2
        assert outcomes(worker)["late"] >= 1
        assert zygote_of(worker, worker.invoke("hangs", x_sockd_fresh="1")) == "root Zygote"


IN_FORK = "import os\nSAW = 1\nmade = os.getpid()\nhangs = (lambda pid: lambda: pid != 1)(made)\ndel made\n"
"""Kept in a closure, which no fingerprint describes: whether a Zygote has imported it."""


@case(
    "P42",
    "have a function's top level hang in a fork of a Zygote, but not in a start of its own",
    expect="verification ends by its deadline, its refusal is tried again soon, and no start of the function hangs",
)
def test_a_top_level_that_hangs_ends_verification(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, f"verify_deadline_s = {2.0 * SLOWER}\n") as worker:
        code = "import p, threading\nif p.hangs():\n    threading.Event().wait()\ndef f(event): return p.SAW\n"
        worker.deploy("then", code, requirements=["p"], wheels=[wheel("p", "1.0", {"p.py": SLOW + IN_FORK})])
        assert worker.call("then") == 1
        worker.daemon.wait_verified()
        reason = passed_over(worker, "then")
        happened(reason)
        assert "the function's top level: a fork did not come to its end: Task timed out" in reason
        sharing = worker.json("/functions/then/imports")["sharing"]
        assert sharing.startswith("no Zygote serves it yet: that of p==1.0: a start of its own differs: ")
        (row,) = worker.json("/packages")
        assert row["differs"][0]["retry_in_s"] <= AFTER_DEADLINE_S
        assert outcomes(worker)["late"] == 1
        assert worker.invoke("then", x_sockd_fresh="1").json == 1


@case(
    "P43",
    "end the worker while it verifies: kindly, and by SIGKILL",
    expect="it ends at once, and nothing of the verification is left",
)
@pytest.mark.parametrize("kindly", [True, False], ids=["SIGTERM", "SIGKILL"])
def test_a_verification_ends_with_the_worker(tmp_path: Path, kindly: bool) -> None:
    with a_worker(tmp_path) as worker:
        wheels = [wheel("p", "1.0", {"p.py": SLOW + HANGING + "SAW = 1\n"})]
        worker.deploy("then", HANDLER, requirements=["p"], wheels=wheels)
        assert worker.call("then") == 1
        wait_until(lambda: any("verification of then" in title_of(pid) for pid in worker.daemon.pids()))
        status = worker.daemon.status()
        assert status["verifying"] == 1 and status["learning"] is True
        assert worker.call("then") == 1, "a request waits for no verification"
        if kindly:
            assert worker.daemon.terminate() == 0
        else:
            worker.daemon.kill()
        wait_until(lambda: not worker.daemon.pids())
