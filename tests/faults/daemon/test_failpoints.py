"""G4: each step of making a sandbox or a Zygote fails, hangs or is killed; somebody answers, and nothing is left."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.faults.daemon.telling import TYPED, in_words
from tests.support import failing as daemon_side
from tests.support.cases import Happened, case
from tests.support.plans import Plans
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

BEFORE_ITS_CGROUP = 'write "0"'
"""A child that hangs in that one write is out of the daemon's reach: it is killed with its Zygote's cgroup. The pidfd that
a Zygote hands over is no better way, as it may be anybody's: a Zygote with packages is not believed."""
PARENT = ("pipe2", "SYS_clone", "write line", 'write "1"', "sendmsg")
"""What a Zygote does for a child: zygote/native/fork.c."""
STREAMS = ("close 0", 'open "/dev/null"', "dup2", "dup3")
BOTH = (BEFORE_ITS_CGROUP, "setsid", "read", "setresgid", "setresuid", "PR_SET_DUMPABLE", *STREAMS)
LAST = ("SYS_close_range", "PR_SET_NO_NEW_PRIVS", "PR_SET_SECCOMP")
SANDBOX = (*BOTH, "sigaction", "PR_CAPBSET_DROP", "fchdir", "chroot", *LAST, "PR_SET_SECUREBITS", "SYS_capset")
"""What a child does between its fork and Python: zygote/native/confine.c."""
ZYGOTE = (*BOTH, *LAST)
SETTLED_S = 5.0
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
EXPECT = "the request is tried again or ends with a typed error, the next one is answered, nothing leaks"


def settled(worker: PrivateWorker, reserved: int, what: str = "") -> None:
    """Wait until the worker has given back everything. Raises: AssertionError naming what it has not."""
    ends = time.monotonic() + SETTLED_S
    tick = threading.Event()
    while True:
        left = worker.leftovers()
        more = worker.daemon.status()["memory"]["reserved_bytes"] - reserved
        if not left and more <= 0:
            return
        assert time.monotonic() < ends, f"{what} left over: {left or f'{more} bytes reserved'}"
        tick.wait(0.01)


def fail_a_start(
    worker: PrivateWorker, plans: Plans, kind: str, step: str, action: str, *, error: int = errno.EIO, nth: int = 1
) -> str:
    """One request while a step fails, and one after it; what became of the first, "" when nothing failed."""
    reserved = worker.daemon.status()["memory"]["reserved_bytes"]
    with plans.failing(kind, step, action, error=error, nth=nth) as plan:
        answer = worker.invoke("victim", 7)
    if not plan.reached:
        assert answer.status == 200, (step, action, answer)
        return ""
    assert (answer.status == 200 and answer.json == 7) or answer.error in TYPED, (step, action, answer)
    after = worker.invoke("victim", 8)
    assert (after.status, after.body) == (200, b"8"), (step, action, after)
    settled(worker, reserved, f"{action} in {step}:")
    return in_words(answer)


@pytest.fixture(scope="module")
def victim(failing: PrivateWorker) -> PrivateWorker:
    failing.deploy("victim", "def f(event): return event")
    failing.call("victim", 1)
    return failing


@case("G4", "each step of making a sandbox or a Zygote fails, hangs, or its process is killed there", expect=EXPECT)
@pytest.mark.parametrize("action", ["error", "kill", "hang"])
def test_a_step_of_a_sandbox_in_its_zygote(
    victim: PrivateWorker, plans: Plans, happened: Happened, action: str, everything: bool
) -> None:
    came: Counter[str] = Counter()
    steps = possible((*PARENT, *SANDBOX), action)
    # Each that hangs is waited for until its deadline: not all of them every day.
    for step in steps if everything or action != "hang" else steps[::2]:
        outcome = fail_a_start(victim, plans, "sandbox", step, action)
        assert outcome, f"{step} was not reached"
        came[outcome] += 1
    happened(f"{action} in {came.total()} steps of Zygote and child: {reported(came)}")


@case("G4", "", expect=EXPECT)
@pytest.mark.parametrize("action", ["error", "kill"])
def test_a_step_of_a_sandbox_in_the_daemon(
    victim: PrivateWorker, plans: Plans, happened: Happened, action: str, everything: bool
) -> None:
    came: Counter[str] = Counter()
    steps = 0
    for step in daemon_side.STEPS:
        for nth in range(1, 100):
            outcome = fail_a_start(victim, plans, "start", step, action, error=errno.EMFILE, nth=nth)
            if not outcome:
                break
            steps, came[outcome] = steps + 1, came[outcome] + 1
            if not everything:
                break
    assert steps >= 9
    happened(f"{action} in {steps} calls of the daemon: {reported(came)}")


@case("G4", "", expect=EXPECT)
@pytest.mark.parametrize("action", ["error", "kill", "hang"])
def test_a_step_of_a_zygote(
    failing: PrivateWorker, plans: Plans, happened: Happened, action: str, everything: bool
) -> None:
    """Functions that would have used it import for themselves, and the next try makes it: no package is blamed."""
    steps = [("zygote", step) for step in possible((*PARENT, *ZYGOTE), action)]
    for kind, step in steps if everything else steps[::5]:
        name = f"{action}-{len(failing.index.files)}"
        module = name.replace("-", "_")
        packed = wheel(name, "1.0", {f"{module}.py": SLOW})
        code = f"import {module}\ndef f(event): return event"
        failing.deploy(name, code, requirements=[name], wheels=[packed])
        with plans.failing(kind, step, action) as plan:
            assert failing.call(name, 1) == 1, step
            assert plan.wait(), f"{step} was not reached"
        assert failing.call(name, 2) == 2, step
        failing.daemon.when(lambda name=name: failing.call(name, 3) and failing.daemon.node(f"{name}==1.0"))  # type: ignore[misc]
        failing.daemon.remove(name)
        settled(failing, failing.daemon.status()["memory"]["reserved_bytes"], f"{action} in {step}:")
    happened(
        f"{action} in {len(steps if everything else steps[::5])} steps of a Zygote: served by its parent, then made"
    )


def possible(steps: Sequence[str], action: str) -> list[str]:
    return [step for step in steps if (step, action) != (BEFORE_ITS_CGROUP, "hang")]


def reported(came: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in came.most_common())
