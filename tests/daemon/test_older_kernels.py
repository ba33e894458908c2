"""A daemon that makes roots early, as it must on kernels before 6.18: all works, without spares."""

from __future__ import annotations

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.package_index import PackageIndex, wheel
from tests.support.threads import at_once

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
"""An import that is worth a Zygote."""
USES = "import slow, os\ndef f(event): return [slow.PID, os.getpid(), len(os.listdir('/tmp'))]\n"


@pytest.fixture(scope="module")
def config() -> str:
    return '[sandbox]\nroots = "early"\n[zygote]\nspares = 8\n'


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    index.add(wheel("slow", "1.0", {"slow.py": SLOW + "import os\nPID = os.getpid()\n"}))


def test_it_says_so(daemon: RunningDaemon) -> None:
    assert daemon.status()["roots"] == {"made": "early", "spares": 0}


def test_a_zygote_is_tried_by_a_canary_and_serves_without_spares(daemon: RunningDaemon) -> None:
    daemon.deploy("first", {"f.py": USES, "requirements.txt": "slow==1.0"})
    assert daemon.call("first") == [1, 1, 0]
    daemon.when(lambda: daemon.node("slow==1.0"))
    imported_by, pid, files = daemon.call_learned("first")
    assert imported_by > 1 and (pid, files) == (1, 0)
    assert [node["spares"] for node in daemon.nodes()] == [0, 0]
    assert daemon.status()["sandboxes"]["spare"] == 0


def test_each_version_gets_its_own_code(daemon: RunningDaemon) -> None:
    for n in range(3):
        daemon.deploy("versions", f"def f(event): return {n}\n")
        assert daemon.call("versions") == n


def test_many_start_and_end_at_once(daemon: RunningDaemon) -> None:
    for n in range(4):
        code = f"import os\ndef f(event):\n os._exit(0) if event == 'die' else None\n return [{n}, event]\n"
        daemon.deploy(f"many-{n}", code)
    events = [n if n % 3 else "die" for n in range(24)]
    answers = at_once(len(events), lambda n: daemon.run(f"many-{n % 4}", events[n]))
    for n, answer in enumerate(answers):
        if events[n] == "die":
            assert answer.status == 502, answer
        else:
            assert answer.json == [n % 4, events[n]], answer
