"""A daemon that takes the ways of an older kernel: the same answers, and spares."""

from __future__ import annotations

import pytest

from sockd.linux.ways import Ways
from tests.daemon.running import RunningDaemon
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import at_once

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
"""An import that is worth a Zygote."""
USES = "import slow, os\ndef f(event): return [slow.PID, os.getpid(), len(os.listdir('/tmp'))]\n"


@pytest.fixture(scope="module")
def config() -> str:
    return '[sandbox]\nkernel = "6.1"\n[zygote]\nspares = 8\n'


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    index.add(wheel("slow", "1.0", {"slow.py": SLOW + "import os\nPID = os.getpid()\n"}))


def test_it_says_so(daemon: RunningDaemon) -> None:
    status = daemon.status()
    assert status["spares"] == 8
    assert status["kernel"] == {**Ways.find((6, 1)).words(), "images": status["kernel"]["images"]}
    assert all(words.endswith("(sandbox.kernel)") for words in status["kernel"].values())


def test_a_function_starts_from_a_spare(daemon: RunningDaemon) -> None:
    daemon.when(lambda: daemon.status()["sandboxes"]["spare"])
    daemon.deploy("spare", "import os\ndef f(event): return [os.getpid(), os.path.exists('/var/task/f.py')]\n")
    answer = daemon.run("spare")
    assert answer.headers["x-sockd-origin"] == "spare" and answer.json == [1, True]


def test_a_function_with_a_larger_tmp_starts_from_a_spare(daemon: RunningDaemon) -> None:
    daemon.when(lambda: daemon.status()["sandboxes"]["spare"])
    code = "import os\ndef f(event):\n stat = os.statvfs('/tmp')\n return stat.f_blocks * stat.f_frsize >> 20\n"
    daemon.deploy("large", code, tmp_mb=700)
    assert daemon.run("large").json == 700


@pytest.mark.parametrize(("statement", "words"), [("os._exit(3)", "exit status 3"), ("os.abort()", "signal: aborted")])
def test_how_a_function_ended_is_reported(daemon: RunningDaemon, statement: str, words: str) -> None:
    daemon.deploy("ends", f"import os\ndef f(event): {statement}\n")
    assert daemon.run("ends").json["errorMessage"].endswith(words)


def test_a_zygote_is_tried_by_a_canary_and_serves(daemon: RunningDaemon) -> None:
    daemon.deploy("first", {"f.py": USES, "requirements.txt": "slow==1.0"})
    assert daemon.call("first") == [1, 1, 0]
    daemon.when(lambda: daemon.node("slow==1.0"))
    imported_by, pid, files = daemon.call_learned("first")
    assert imported_by > 1 and (pid, files) == (1, 0)


def test_how_a_function_ended_that_a_zygote_with_its_package_forked_is_reported(daemon: RunningDaemon) -> None:
    """A Zygote watches its children otherwise while it imports, and goes back to how it watched them."""
    code = "import slow, os\ndef f(event): return os._exit(3) if event == 'die' else slow.PID\n"
    daemon.deploy("dies", {"f.py": code, "requirements.txt": "slow==1.0"})
    assert daemon.call("dies") == 1
    daemon.when(lambda: daemon.node("slow==1.0"))
    assert daemon.call_learned("dies") > 1, "no Zygote has imported it"
    assert daemon.run("dies", "die").json["errorMessage"].endswith("exit status 3")


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
