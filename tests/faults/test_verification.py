"""What the rule does not see, verification finds: a fork is compared with a start of the function's own before it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sockd.caches.zygotes.refusals import AFTER_DEADLINE_S
from tests.daemon.running import DEADLINE_S
from tests.faults.packages import SLOW
from tests.support.cases import Happened, case
from tests.support.package_index import wheel
from tests.support.private_worker import PrivateWorker

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

SETTINGS: dict[str, Any] = {"memory_mb": 128, "timeout_s": 20}
TRY = "try:\n    import opt\n    SAW = 'opt is there'\nexcept ImportError:\n    SAW = None\n"
HANGING = "import sys, threading\nSAW = 1\nif 'sockd_zygote.own_functions.trial' in sys.modules:\n    threading.Event().wait()\n"
HANDLER = "import sys\nTHERE = 'p' in sys.modules\nimport p\ndef f(event): return [THERE, p.SAW]\n"


@contextmanager
def a_worker(directory: Path, config: str = "", broken: str = "") -> Iterator[PrivateWorker]:
    worker = PrivateWorker(directory, config, broken=broken)
    try:
        yield worker
    finally:
        worker.close()


def learn(house: PrivateWorker, code: str, name: str = "p") -> None:
    """Have a Zygote of a package, made from a function of it alone."""
    house.deploy("first", HANDLER, requirements=[name], wheels=[wheel(name, "1.0", {f"{name}.py": SLOW + code})])
    house.call("first")
    house.daemon.when(lambda: house.daemon.node(f"{name}==1.0"))


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


def passed_over(house: PrivateWorker, name: str) -> str:
    return "; ".join(larger["reason"] for larger in house.json(f"/functions/{name}/imports")["passed_over"])


@case(
    "P40",
    "take from the worker's rule the names that imports look up, learn a package, and deploy it with what it looks for",
    expect="verification finds the other answer, no start gives it, and the worker names it everywhere",
)
def test_what_the_rule_lets_through_is_found(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, broken="names-unobserved") as house:
        learn(house, TRY)
        house.deploy(
            "then", HANDLER, requirements=["p", "opt"], wheels=[wheel("opt", "1.0", {"opt.py": ""})], **SETTINGS
        )
        assert house.call("then") == [False, "opt is there"], "served before it was verified"
        house.daemon.wait_verified()
        assert outcomes(house)["different"] == 1
        answer = house.invoke("then", x_sockd_fresh="1")
        assert answer.json == [False, "opt is there"]
        words = "p.SAW: None instead of 'opt is there'"
        reason = passed_over(house, "then")
        happened(reason)
        assert words in reason
        assert words in house.json(f"/traces/{answer.headers['x-amzn-requestid']}")["passed_over"]
        assert words in house.cli("tree").stdout
        assert "p.SAW" in house.cli("packages", "ls", "--json").stdout
        assert house.cli("packages", "forgive", "p").stdout.strip().startswith("forgiven: p-1.0")
        assert not any(row.get("differs") for row in house.json("/packages"))
        house.daemon.when(lambda: house.daemon.node("p==1.0", "opt==1.0"))
        assert house.invoke("then", x_sockd_fresh="1").json == [True, "opt is there"]


SECRET = "hunter2-and-more"


@case(
    "P40", "take from the rule the variables that imports read", expect="found, too, and no value of a variable is told"
)
def test_a_difference_tells_no_value_of_a_variable(tmp_path: Path, happened: Happened) -> None:
    code = "import os\nSAW = os.environ.get('P_KEY')\nPART = SAW and SAW.split('-')[0]\n"
    with a_worker(tmp_path, broken="variables-unobserved") as house:
        learn(house, code)
        house.deploy("then", HANDLER, requirements=["p"], env={"P_KEY": SECRET})
        assert house.call("then") == [False, SECRET]
        house.daemon.wait_verified()
        reason = passed_over(house, "then")
        happened(reason)
        assert "p.SAW: None instead of $P_KEY" in reason and "p.PART: None instead of a str" in reason
        assert house.invoke("then", x_sockd_fresh="1").json == [False, SECRET]
        told = "\n".join(house.daemon.lines) + house.cli("tree").stdout + house.cli("packages", "ls").stdout
        assert "P_KEY" in told and SECRET.split("-")[0] not in told


@case(
    "P41",
    "learn a package, and deploy it with another package, and with a variable that nobody reads",
    expect="the first start is its own, the pair is verified after it, and the next start is forked from the Zygote",
)
@pytest.mark.parametrize("kind", ["packages", "variables"])
def test_a_pair_that_is_alike_is_used(tmp_path: Path, kind: str, happened: Happened) -> None:
    with a_worker(tmp_path) as house:
        learn(house, "SAW = 1\nclass A:\n    x = {1, 2, 'a'}\nNUMBERS = {A, int, str, repr}\n")
        more: dict[str, Any] = {"requirements": ["p", "other"]} if kind == "packages" else {"env": {"UNREAD": "1"}}
        house.deploy(
            "then", HANDLER, **{"requirements": ["p"], **more}, wheels=[wheel("other", "1.0", {"other.py": ""})]
        )
        assert house.call("then") == [False, 1]
        house.daemon.wait_verified()
        assert house.invoke("then", x_sockd_fresh="1").json == [True, 1], passed_over(house, "then")
        house.deploy("again", HANDLER, **{"requirements": ["p"], **more})
        assert house.call("again") == [True, 1], (
            "another function with this closure and environment is verified with it"
        )
        for _ in range(5):
            assert house.invoke("then", x_sockd_fresh="1").json == [True, 1]
        assert outcomes(house) == {"alike": 1, "different": 0, "late": 0, "postponed": 0}
        happened(str(outcomes(house)))


@case(
    "P42",
    "have the import of a package hang in a start of a function's own, but not in a Zygote",
    expect="verification ends by its deadline, and its refusal is tried again soon",
)
def test_an_import_that_hangs_ends_verification(tmp_path: Path, happened: Happened) -> None:
    with a_worker(tmp_path, "verify_deadline_s = 2.0\n") as house:
        learn(house, HANGING)
        house.deploy("then", HANDLER, requirements=["p"], env={"UNREAD": "1"})
        assert house.call("then") == [False, 1]
        house.daemon.wait_verified()
        reason = passed_over(house, "then")
        happened(reason)
        assert "import p: a start of its own did not come to its end: Task timed out" in reason
        (row,) = house.json("/packages")
        assert row["differs"][0]["retry_in_s"] <= AFTER_DEADLINE_S
        assert outcomes(house)["late"] == 1
        assert house.invoke("then", x_sockd_fresh="1").json == [False, 1]


@case(
    "P43",
    "end the worker while it verifies: kindly, and by SIGKILL",
    expect="it ends at once, and nothing of the verification is left",
)
@pytest.mark.parametrize("kindly", [True, False], ids=["SIGTERM", "SIGKILL"])
def test_a_verification_ends_with_the_worker(tmp_path: Path, kindly: bool) -> None:
    with a_worker(tmp_path) as house:
        learn(house, HANGING)
        house.deploy("then", HANDLER, requirements=["p"], env={"UNREAD": "1"})
        assert house.call("then") == [False, 1]
        wait_until(lambda: any("verification of then" in title_of(pid) for pid in house.daemon.pids()))
        assert house.daemon.status()["verifying"] == 1
        assert house.call("then") == [False, 1], "a request waits for no verification"
        if kindly:
            assert house.daemon.terminate() == 0
        else:
            house.daemon.kill()
        wait_until(lambda: not house.daemon.pids())
