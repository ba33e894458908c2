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
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SETTINGS: dict[str, Any] = {"memory_mb": 128, "timeout_s": 20}
LOOKS = "import importlib.util\nSAW = 'opt is there' if importlib.util.find_spec('opt') else None\n"
"""The function loads nothing more where opt exists, which its top level would show."""
HANGING = "import sys, threading\nif 'sockd_zygote.own_functions.trial' in sys.modules:\n    threading.Event().wait()\n"
HANDLER = "import p\ndef f(event): return p.SAW\n"


@contextmanager
def a_worker(directory: Path, config: str = "", broken: str = "") -> Iterator[PrivateWorker]:
    worker = PrivateWorker(directory, config, broken=broken)
    try:
        yield worker
    finally:
        worker.close()


def learn(house: PrivateWorker, code: str) -> None:
    """Have a Zygote of a package, made from a function of it alone, and verified for that."""
    house.deploy("first", HANDLER, requirements=["p"], wheels=[wheel("p", "1.0", {"p.py": SLOW + code})])
    house.call("first")
    house.call_learned("first")


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


def outcomes(house: PrivateWorker) -> dict[str, float]:
    """How many verifications came to what."""
    text = house.daemon.request("GET", "/metrics").body.decode()
    lines = (line for line in text.splitlines() if line.startswith("sockd_zygote_verifications_total{"))
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def zygote_of(house: PrivateWorker, answer: Answer) -> str:
    """What served an invocation that started a sandbox."""
    assert answer.status == 200, answer
    zygote: str = house.json(f"/traces/{answer.headers['x-amzn-requestid']}")["zygote"]
    return zygote


def passed_over(house: PrivateWorker, name: str) -> str:
    return "; ".join(larger["reason"] for larger in house.json(f"/functions/{name}/imports")["passed_over"])


@case(
    "P40",
    "take from the worker's rule the names that imports look up, learn a package, and deploy it with what it looks for",
    expect="verification finds the other answer, no start gives it, and the worker names it everywhere",
)
def test_what_the_rule_lets_through_is_found(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, broken="names-unobserved") as house:
        learn(house, LOOKS)
        house.deploy(
            "then", HANDLER, requirements=["p", "opt"], wheels=[wheel("opt", "1.0", {"opt.py": ""})], **SETTINGS
        )
        assert house.call("then") == "opt is there", "served before it was verified"
        answer = house.daemon.run_learned("then")
        assert outcomes(house)["different"] >= 1
        assert answer.json == "opt is there"
        words = "p.SAW: None instead of 'opt is there'"
        reason = passed_over(house, "then")
        happened(reason)
        assert words in reason
        assert words in house.json(f"/traces/{answer.headers['x-amzn-requestid']}")["passed_over"]
        assert words in house.cli("tree").stdout
        assert "p.SAW" in house.cli("packages", "ls", "--json").stdout
        forgiven = house.cli("packages", "forgive", "p").stdout
        # Only the first module that differs is reported: that of p or that of opt, whichever comes first.
        assert forgiven.startswith(("forgiven: p-1.0", "forgiven: opt-1.0"))
        assert not any(row.get("differs") for row in house.json("/packages"))
        assert house.daemon.run_learned("then").json == house.daemon.run_learned("then").json == "opt is there"


SECRET = "hunter2-and-more"


@case(
    "P40", "take from the rule the variables that imports read", expect="found, too, and no value of a variable is told"
)
def test_a_difference_tells_no_value_of_a_variable(tmp_path: Path, happened: Happened) -> None:
    code = "import os\nSAW = os.environ.get('P_KEY')\nPART = SAW and SAW.split('-')[0]\n"
    with a_worker(tmp_path, broken="variables-unobserved") as house:
        learn(house, code)
        house.deploy("then", HANDLER, requirements=["p"], env={"P_KEY": SECRET})
        assert house.call("then") == SECRET
        house.daemon.wait_verified()
        reason = passed_over(house, "then")
        happened(reason)
        assert "p.SAW: None instead of $P_KEY" in reason and "p.PART: None instead of a str" in reason
        assert house.daemon.run_learned("then").json == SECRET
        told = "\n".join(house.daemon.lines) + house.cli("tree").stdout + house.cli("packages", "ls").stdout
        assert "P_KEY" in told and SECRET.split("-")[0] not in told


@case(
    "P41",
    "learn a package, and deploy it with another package, and with a variable that nobody reads",
    expect="the first start is its own, the Zygote is verified after it, and the next start is forked from that; so is the first "
    "one of the same version, deployed again",
)
@pytest.mark.parametrize("kind", ["packages", "variables"])
def test_a_zygote_that_is_alike_is_used(tmp_path: Path, kind: str, happened: Happened) -> None:
    with a_worker(tmp_path) as house:
        learn(house, "SAW = 1\nclass A:\n    x = {1, 2, 'a'}\nNUMBERS = {A, int, str, repr}\n")
        more: dict[str, Any] = {"requirements": ["p", "other"]} if kind == "packages" else {"env": {"UNREAD": "1"}}
        settings = {"requirements": ["p"], **more}
        house.deploy("then", HANDLER, **settings, wheels=[wheel("other", "1.0", {"other.py": ""})])
        assert zygote_of(house, house.invoke("then")) == "root Zygote", "served before it was verified"
        assert house.call_learned("then") == 1
        for _ in range(5):
            assert zygote_of(house, house.invoke("then", x_sockd_fresh="1")) == "p"
        counts = outcomes(house)
        happened(str(counts))
        assert counts == {"recorded": 2, "alike": 2, "different": 0, "late": 0, "postponed": 0}
        house.daemon.remove("then")
        house.deploy("then", HANDLER, **settings)
        assert zygote_of(house, house.invoke("then")) == "p", "what is known of this version is known of it again"


@case(
    "P42",
    "have the import of a package hang in each trial",
    expect="its recording ends by its deadline and is tried again later; others are recorded, and each start is answered",
)
def test_an_import_that_hangs_ends_its_recording(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, "verify_deadline_s = 2.0\n") as house:
        wheels = [wheel("p", "1.0", {"p.py": SLOW + HANGING + "SAW = 1\n"}), wheel("good", "1.0", {"good.py": SLOW})]
        house.deploy("hangs", HANDLER, requirements=["p"], wheels=wheels)
        assert house.call("hangs") == 1
        line = house.daemon.wait_line("the top level of hangs@.* was not recorded: (.*)")[1]
        happened(line)
        assert line.startswith("the function's top level: a start of its own did not come to its end: Task timed out")
        sharing = house.json("/functions/hangs/imports")["sharing"]
        assert sharing.startswith("its top level could not be recorded: ") and "Task timed out" in sharing
        house.deploy("good", "import good\ndef f(event): return 2\n", requirements=["good"])
        assert house.call("good") == house.call_learned("good") == 2
        assert outcomes(house)["late"] >= 1
        assert zygote_of(house, house.invoke("hangs", x_sockd_fresh="1")) == "root Zygote"


IN_FORK = "import os\nSAW = 1\nmade = os.getpid()\nhangs = (lambda pid: lambda: pid != 1)(made)\ndel made\n"
"""Kept in a closure, which no fingerprint describes: whether a Zygote has imported it."""


@case(
    "P42",
    "have a function's top level hang in a fork of a Zygote, but not in a start of its own",
    expect="verification ends by its deadline, its refusal is tried again soon, and no start of the function hangs",
)
def test_a_top_level_that_hangs_ends_verification(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, "verify_deadline_s = 2.0\n") as house:
        code = "import p, threading\nif p.hangs():\n    threading.Event().wait()\ndef f(event): return p.SAW\n"
        house.deploy("then", code, requirements=["p"], wheels=[wheel("p", "1.0", {"p.py": SLOW + IN_FORK})])
        assert house.call("then") == 1
        house.daemon.wait_verified()
        reason = passed_over(house, "then")
        happened(reason)
        assert "the function's top level: a fork did not come to its end: Task timed out" in reason
        sharing = house.json("/functions/then/imports")["sharing"]
        assert sharing.startswith("no Zygote serves it yet: that of p==1.0: a start of its own differs: ")
        (row,) = house.json("/packages")
        assert row["differs"][0]["retry_in_s"] <= AFTER_DEADLINE_S
        assert outcomes(house)["late"] == 1
        assert house.invoke("then", x_sockd_fresh="1").json == 1


@case(
    "P43",
    "end the worker while it verifies: kindly, and by SIGKILL",
    expect="it ends at once, and nothing of the verification is left",
)
@pytest.mark.parametrize("kindly", [True, False], ids=["SIGTERM", "SIGKILL"])
def test_a_verification_ends_with_the_worker(tmp_path: Path, kindly: bool) -> None:
    with a_worker(tmp_path) as house:
        wheels = [wheel("p", "1.0", {"p.py": SLOW + HANGING + "SAW = 1\n"})]
        house.deploy("then", HANDLER, requirements=["p"], wheels=wheels)
        assert house.call("then") == 1
        wait_until(lambda: any("verification of then" in title_of(pid) for pid in house.daemon.pids()))
        status = house.daemon.status()
        assert status["verifying"] == 1 and status["learning"] is True
        assert house.call("then") == 1, "a request waits for no verification"
        if kindly:
            assert house.daemon.terminate() == 0
        else:
            house.daemon.kill()
        wait_until(lambda: not house.daemon.pids())
