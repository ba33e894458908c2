"""Packages that misbehave in a Zygote: no request notices, the package is recorded with a reason, and the rest goes on."""

from __future__ import annotations

import time

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.servers.package_index import PackageIndex, wheel

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
IN_ZYGOTE = "import os\nif os.getpid() != 1:\n    "
"""A handler is pid 1 of its own namespace; a Zygote is not."""

REFUSED = {
    "exits": IN_ZYGOTE + "os._exit(3)\n",
    "dies": IN_ZYGOTE + "import ctypes; ctypes.string_at(0)\n",
    "kills-itself": IN_ZYGOTE + "os.kill(os.getpid(), 9)\n",
    "hangs": IN_ZYGOTE + "import threading; threading.Event().wait()\n",
    "closes": IN_ZYGOTE + "os.closerange(0, 100)\n",
    "garbles": IN_ZYGOTE + "import socket; socket.socket(fileno=os.dup(3)).send(b'garbage')\n",
    "shouts": IN_ZYGOTE + "import socket; socket.socket(fileno=os.dup(3)).send(b'x' * 100000)\n",
    "breaks-marshal": IN_ZYGOTE + "import marshal; marshal.loads = None\n",
    "eats": IN_ZYGOTE + "x = bytearray(1 << 30)\n",
    "stops-forks": IN_ZYGOTE + "os.chdir = lambda path: os._exit(9)\n",
    "starts-thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
}


@pytest.fixture(scope="module")
def config() -> str:
    return "[zygote]\nimport_deadline_s = 4.0\ncanary_deadline_s = 4.0\nmemory_mb = 256\n"


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    for name, code in REFUSED.items():
        module = name.replace("-", "_")
        index.add(wheel(name, "1.0", {f"{module}.py": SLOW + code + "N = 1\n"}))
    index.add(wheel("good", "1.0", {"good.py": SLOW + "import os\nPID = os.getpid()\n"}))
    index.add(wheel("raises", "1.0", {"raises.py": SLOW + IN_ZYGOTE + "raise ValueError('not here')\nN = 1\n"}))


WORDS = "raises: it cannot be imported in a Zygote: ValueError: not here"


def deploy(daemon: RunningDaemon, name: str, *requirements: str) -> None:
    modules = ", ".join(each.replace("-", "_") for each in requirements)
    code = f"import {modules}\ndef f(event): return event\n"
    daemon.deploy(name, {"f.py": code, "requirements.txt": "\n".join(requirements)})


def refusals(daemon: RunningDaemon) -> dict[str, str]:
    return {entry["package"]: entry["reason"] for entry in daemon.tree()["refused"]}


@pytest.mark.parametrize("package", REFUSED)
def test_a_package_that_harms_its_zygote_takes_no_request_down_and_is_recorded(
    daemon: RunningDaemon, package: str
) -> None:
    deploy(daemon, f"a-{package}", package)
    for number in range(3):
        assert daemon.call(f"a-{package}", number) == number
    reason = daemon.when(lambda: refusals(daemon).get(f"{package}==1.0"))
    assert reason and str(daemon.state) not in reason
    assert daemon.packages()[f"{package}==1.0"]["reason"] == reason
    assert daemon.node(f"{package}==1.0") is None
    deploy(daemon, f"b-{package}", package)
    answer = daemon.run(f"b-{package}", "later")
    assert answer.json == "later" and answer.timing["init"] > 30  # it imported for itself


def test_a_package_that_raises_in_a_zygote_only_is_imported_by_its_users(daemon: RunningDaemon) -> None:
    for number in range(3):
        deploy(daemon, f"raises-{number}", "raises")
        answer = daemon.run(f"raises-{number}", number)
        assert answer.json == number and answer.timing["init"] > 30
    assert daemon.when(lambda: refusals(daemon).get("raises==1.0")) == WORDS


def test_the_harmless_packages_next_to_a_harmful_one_are_cached_all_the_same(daemon: RunningDaemon) -> None:
    deploy(daemon, "mixed", "good", "exits")
    assert daemon.call("mixed", 1) == 1
    daemon.when(lambda: refusals(daemon).get("exits==1.0"))
    deploy(daemon, "mixed2", "good", "exits")
    assert daemon.call("mixed2", 1) == 1
    daemon.when(lambda: daemon.node("good==1.0"))
    assert daemon.node("good==1.0", "exits==1.0") is None


def test_refusals_outlive_the_daemon(daemon: RunningDaemon) -> None:
    import json

    learned = json.loads((daemon.state / "learned.json").read_text())
    assert {entry[0].rpartition("-")[0] for entry in learned["refused"]} >= {"exits-1.0", "hangs-1.0"}


def test_removing_a_refused_package_forgives_it(daemon: RunningDaemon) -> None:
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])
    key = daemon.packages()["exits==1.0"]["key"]
    assert daemon.manage("DELETE", f"/packages/{key}").status == 200
    assert "exits==1.0" not in refusals(daemon) and key not in refusals(daemon)


def test_nothing_of_a_failed_zygote_is_left(daemon: RunningDaemon) -> None:
    """Every cgroup with a process belongs to the farm, a Zygote in the tree, a spare or an idle sandbox."""
    ends = time.monotonic() + 60
    while True:
        status = daemon.status()
        sandboxes = status["sandboxes"]
        known = 2 + status["zygotes"] + sandboxes["idle"] + sandboxes["paused"] + sandboxes["spare"]
        if len(daemon.pids()) == known and status["cgroups"]["recycling"] == 0:
            return
        assert time.monotonic() < ends, (len(daemon.pids()), status)
