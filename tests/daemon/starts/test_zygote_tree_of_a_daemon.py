"""The import cache of a real daemon: Zygotes appear for what functions import, and serve exactly those who asked for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import Answer, DeployFailed, RunningDaemon
from tests.support.servers.package_index import PackageIndex, wheel

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
"""An import that is worth a Zygote: 30 ms of work."""
LOUD = "print('importing', __name__)\nimport os as _o\nPID = _o.getpid()\n"
"""In a Zygote this goes to /dev/null: a function that has it in its log has imported for itself."""


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    index.add(
        wheel(
            "slow", "1.0", {"slow/__init__.py": SLOW + LOUD + "V = 1\n", "slow/part.py": LOUD, "slow/unused.py": LOUD}
        )
    )
    index.add(wheel("slow", "2.0", {"slow/__init__.py": SLOW + LOUD + "V = 2\n", "slow/part.py": LOUD}))
    index.add(wheel("upper", "1.0", {"upper.py": "import slow\n" + SLOW + LOUD}, requires=("slow==1.0",)))
    index.add(wheel("never", "1.0", {"never.py": SLOW + LOUD}))
    index.add(wheel("ns-a", "1.0", {"ns/a.py": SLOW + "NAME = 'a'\n"}))
    index.add(wheel("ns-b", "1.0", {"ns/b.py": SLOW + "NAME = 'b'\n"}))
    index.add(
        wheel(
            "with-pth",
            "1.0",
            {
                "with_pth.pth": "import with_pth_hook\n",
                "with_pth_hook.py": "import builtins; builtins.hooked = True\n",
                "with_pth_lib.py": SLOW,
            },
        )
    )
    index.add(
        wheel(
            "with-data",
            "1.0",
            {
                "with_data/__init__.py": SLOW,
                "with_data/table.csv": "a,b\n1,2\n",
                "with_data-1.0.dist-info/entry_points.txt": "[sockd.test]\nplug = with_data:plugged\n",
                "with_data-1.0.data/scripts/say-data": "#!python\nprint('said')\n",
            },
        )
    )


def deploy(daemon: RunningDaemon, name: str, requirements: str, code: str, **settings: object) -> None:
    daemon.deploy(name, {"f.py": code, "requirements.txt": requirements}, **settings)


def wait_for_node(daemon: RunningDaemon, *requirements: str) -> Mapping[str, Any]:
    """The Zygote of exactly these packages, when it serves."""
    return daemon.when(lambda: daemon.node(*requirements))


def fresh(daemon: RunningDaemon, name: str, requirements: str, code: str) -> Answer:
    """The first answer of a new function."""
    deploy(daemon, name, requirements, code)
    answer = daemon.run(name)
    assert answer.status == 200, answer
    assert answer.headers["x-sockd-cold"] == "1"
    return answer


USES = "import slow, slow.part, sys\ndef f(event): return [slow.V, slow.PID]\n"
LOADED = """
import sys
seen = sorted(name for name in sys.modules if name.split('.')[0] in ('slow', 'upper', 'never'))
def f(event): return seen
"""


def test_the_imports_of_a_function_become_a_zygote_that_serves_the_next_function(
    daemon: RunningDaemon,
) -> None:
    first = fresh(daemon, "first", "slow==1.0", USES)
    assert daemon.log_of("first", first) == "importing slow\nimporting slow.part\n"
    assert first.json == [1, 1] and first.timing["init"] > 30  # pid 1: imported in the sandbox itself
    node = wait_for_node(daemon, "slow==1.0")
    assert node["modules"] == 2 and node["unique_memory_bytes"] > 0
    assert fresh(daemon, "second", "slow==1.0", USES).json == [1, 1], "served before its top level was recorded"
    second = daemon.run_learned("second")
    assert daemon.log_of("second", second) == ""
    assert second.json[0] == 1 and second.json[1] > 1
    others = [daemon.run_learned(name) for name in ("first", "second") * 2]
    # The quickest: any one of them may have had to wait for a processor.
    assert min(answer.timing["init"] for answer in (second, *others)) < first.timing["init"] / 3
    assert wait_for_node(daemon, "slow==1.0")["starts"] >= 2
    fresh(daemon, "third", "slow==1.0", f"import slow\n{LOADED}")
    daemon.run_learned("third")
    assert daemon.run_learned("third").json == ["slow"], "a submodule that it does not import"
    assert fresh(daemon, "fourth", "slow==1.0", LOADED).json == []
    assert daemon.run_learned("fourth").json == [], "a package that it does not import"
    (reported,) = daemon.manage("GET", "/functions/first/imports").json["packages"]
    assert reported["package"] == "slow==1.0" and reported["in_zygote"] and reported["ms"] > 30
    assert {module["module"] for module in reported["modules"]} == {"slow", "slow.part"}


def test_a_deploys_check_is_enough_for_the_first_request_to_be_served_by_a_zygote(daemon: RunningDaemon) -> None:
    fresh(daemon, "taught", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    for settings in ({}, {"env": {"OTHER": "version"}}):  # a new function, and a new version of it
        deploy(daemon, "checked", "slow==1.0", USES, check=True, **settings)
        daemon.wait_verified()
        first = daemon.run("checked")
        assert first.headers["x-sockd-cold"] == "1" and first.json[1] > 1
        assert daemon.log_of("checked", first) == ""
    changed = daemon.manage("PATCH", "/functions/checked/settings", json.dumps({"memory_mb": 192}).encode())
    assert changed.status == 200, changed
    daemon.wait_verified()
    first = daemon.run("checked")
    assert first.headers["x-sockd-cold"] == "1" and first.json[1] > 1


def test_a_published_version_is_served_by_a_zygote_from_its_first_request_on(daemon: RunningDaemon) -> None:
    fresh(daemon, "taught", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    deploy(daemon, "released", "slow==1.0", USES, check=True)
    released = daemon.manage("POST", "/functions/released/versions", b"{}")  # while its top level is being recorded
    assert released.status == 200, released
    daemon.wait_verified()
    deploy(daemon, "released", "slow==1.0", f"# again\n{USES}", check=True)
    daemon.wait_verified()
    assert daemon.manage("POST", "/functions/released/versions", b"{}").status == 200
    daemon.wait_verified()
    for name in ("released:1", "released:2"):
        first = daemon.run(name)
        assert first.headers["x-sockd-cold"] == "1" and first.json[1] > 1


def test_a_version_that_failed_its_check_or_has_a_snapshot_is_not_recorded(daemon: RunningDaemon) -> None:
    assert (outcomes := verifications(daemon))
    deploy(daemon, "snapshotted", "slow==1.0", USES, check=True, snapshot=True)
    with pytest.raises(DeployFailed):
        deploy(daemon, "fails", "slow==1.0", f"{USES}raise ValueError('no start')\n", check=True)
    daemon.wait_verified()
    assert verifications(daemon) == outcomes


def verifications(daemon: RunningDaemon) -> list[str]:
    """How often something was recorded or compared, by what came of it."""
    lines = daemon.request("GET", "/metrics").body.decode().splitlines()
    return [line for line in lines if line.startswith("sockd_zygote_verifications_total{")]


def test_a_function_that_did_not_ask_for_a_package_never_gets_it(daemon: RunningDaemon) -> None:
    fresh(daemon, "asks", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    for n in range(4):
        code = f"# {n}\n{LOADED}path = [p for p in sys.path if 'packages' in p]\ndef f(event): return [seen, path]\n"
        daemon.deploy(f"bare-{n}", code)
        assert daemon.call(f"bare-{n}") == [[], []]
        other = fresh(daemon, f"other-{n}", "never", code).json
        assert other[0] == [] and len(other[1]) == 1 and other[1][0].startswith("/packages/never-1.0-")


def test_a_function_is_served_by_the_largest_subset_of_what_it_asked_for(daemon: RunningDaemon) -> None:
    fresh(daemon, "base", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    above = fresh(daemon, "above", "slow==1.0\nnever", USES)
    assert above.json[1] == 1, "served before it was compared with a start of its own"
    above = daemon.run_learned("above")
    assert daemon.log_of("above", above) == "" and above.json[1] > 1
    fresh(daemon, "upper", "upper", "import upper\ndef f(event): return 1\n")
    wait_for_node(daemon, "slow==1.0", "upper==1.0")
    again = fresh(daemon, "again", "upper", "import upper\ndef f(event): return [upper.PID, upper.slow.PID]\n")
    assert again.json == [1, 1], "a Zygote with another below it has been served before it was compared"
    again = daemon.run_learned("again")
    assert daemon.log_of("again", again) == "" and again.json[0] > 1 < again.json[1]
    fresh(daemon, "alone", "slow==1.0", f"import slow\n{LOADED}")
    assert daemon.run_learned("alone").json == ["slow"]


def test_a_package_that_was_asked_for_and_never_imported_gets_no_zygote(daemon: RunningDaemon) -> None:
    for n in range(3):
        fresh(daemon, f"idle-{n}", "never", f"x = {n}\ndef f(event): return 1\n")
        assert daemon.call(f"idle-{n}") == 1
    assert daemon.node("never==1.0") is None


def test_conflicting_versions_coexist_each_in_a_zygote_of_its_own(daemon: RunningDaemon) -> None:
    for turn, version in enumerate(("1.0", "2.0", "1.0", "2.0")):
        name = f"v{version[0]}-{turn}"
        assert fresh(daemon, name, f"slow=={version}", USES).json[0] == int(version[0])
        wait_for_node(daemon, f"slow=={version}")
        number, pid = daemon.run_learned(name).json
        assert number == int(version[0]) and pid > 1
    assert {"slow==1.0", "slow==2.0"} <= set(daemon.packages())


def test_a_namespace_package_may_be_half_in_the_zygote_and_half_not(daemon: RunningDaemon) -> None:
    fresh(daemon, "half", "ns-a", "import ns.a\ndef f(event): return ns.a.NAME\n")
    wait_for_node(daemon, "ns-a==1.0")
    both = "import ns.a, ns.b\ndef f(event): return [ns.a.NAME, ns.b.NAME, len(ns.__path__)]\n"
    assert fresh(daemon, "both", "ns-a\nns-b", both).json == ["a", "b", 2]
    wait_for_node(daemon, "ns-a==1.0", "ns-b==1.0")
    assert daemon.run_learned("both").json == ["a", "b", 2]
    assert fresh(daemon, "both2", "ns-a\nns-b", both).json == ["a", "b", 2]
    assert daemon.run_learned("both2").json == ["a", "b", 2]


@pytest.mark.parametrize("turn", ["without a Zygote", "from its Zygote"])
def test_pth_files_data_files_entry_points_and_scripts_work(daemon: RunningDaemon, turn: str) -> None:
    hooked = "import builtins, with_pth_lib\ndef f(event): return builtins.hooked\n"
    first = fresh(daemon, f"pth-{turn[:4]}", "with-pth", hooked)
    wait_for_node(daemon, "with-pth==1.0")
    assert first.json is daemon.run_learned(f"pth-{turn[:4]}").json is True
    answer = fresh(
        daemon,
        f"data-{turn[:4]}",
        "with-data",
        "import importlib.metadata, importlib.resources, subprocess, with_data\n"
        "def f(event):\n"
        "    text = (importlib.resources.files(with_data) / 'table.csv').read_text()\n"
        "    (plug,) = importlib.metadata.entry_points(group='sockd.test')\n"
        "    version = importlib.metadata.version('with-data')\n"
        "    said = subprocess.run(['say-data'], capture_output=True, text=True).stdout\n"
        "    return [text, plug.name, plug.value, version, said]\n",
    )
    assert answer.json[:4] == ["a,b\n1,2\n", "plug", "with_data:plugged", "1.0"]
    assert answer.json[4] == "said\n"
    wait_for_node(daemon, "with-data==1.0")
    assert daemon.run_learned(f"data-{turn[:4]}").json == answer.json


def test_randomness_differs_between_the_children_of_one_zygote(daemon: RunningDaemon) -> None:
    code = (
        "import slow, random, secrets, uuid, os\n"
        "def f(event): return [random.random(), secrets.token_hex(8), str(uuid.uuid4()), os.urandom(4).hex()]\n"
    )
    fresh(daemon, "seed", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    for n in range(5):
        fresh(daemon, f"random-{n}", "slow==1.0", f"# {n}\n{code}")
    answers = [daemon.run_learned(f"random-{n}").json for n in range(5)]
    for column in zip(*answers, strict=True):
        assert len(set(column)) == 5


def test_nothing_of_a_function_is_ever_in_a_zygote(daemon: RunningDaemon) -> None:
    """Code, environment and secrets reach a child after the fork; its siblings and successors find none of it."""
    deploy(
        daemon,
        "secretive",
        "slow==1.0",
        "import slow, os, builtins\nbuiltins.leak = slow.leak = 'leaked'\nopen('/tmp/leak', 'w').close()\n"
        "def f(event): return os.environ['KEY']\n",
        env={"KEY": "hunter2"},
    )
    assert daemon.call("secretive") == "hunter2"
    code = (
        "import slow, os, builtins\n"
        "def f(event):\n"
        "    return [hasattr(builtins, 'leak'), hasattr(slow, 'leak'), os.environ.get('KEY'), os.listdir('/tmp')]\n"
    )
    for n in range(3):
        assert fresh(daemon, f"curious-{n}", "slow==1.0", f"# {n}\n{code}").json == [False, False, None, []]
        assert daemon.run_learned(f"curious-{n}").json == [False, False, None, []]


def test_what_was_learned_survives_the_daemon(daemon: RunningDaemon) -> None:
    fresh(daemon, "learns", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    learned = "".join(path.read_text() for path in (daemon.state / "recordings").iterdir())
    assert "slow.part" in learned and re.search(r"slow-1\.0-[0-9a-f]{12}", learned)
    daemon.wait_verified()
    verified = (daemon.state / "learned.json").read_text()
    assert json.loads(verified)["verified"]
    assert "hunter2" not in learned + verified


def test_why_nothing_is_imported_ahead_is_said(daemon: RunningDaemon) -> None:
    def sharing(name: str) -> str:
        said: str = daemon.manage("GET", f"/functions/{name}/imports").json["sharing"]
        return said

    deploy(daemon, "alone", "slow==1.0", USES, zygote="none")
    daemon.deploy("program", {"f.py": "def f(event): pass\n"}, runtime="provided", handler="f.f")
    assert sharing("alone") == 'nothing is imported ahead: zygote = "none"'
    assert sharing("program") == "nothing is imported ahead: it is a program, which no Zygote of Python runs"


def test_removing_a_function_ends_the_zygotes_that_no_other_can_use(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("lonely", "1.0", {"lonely.py": SLOW}))
    for name in ("leaving", "staying"):
        fresh(daemon, name, "lonely==1.0", f"# {name}\nimport lonely\ndef f(event): return 1\n")
        assert daemon.call_learned(name) == 1
    daemon.remove("leaving")
    assert daemon.node("lonely==1.0") is not None and daemon.call_learned("staying") == 1
    daemon.remove("staying")
    assert daemon.node("lonely==1.0") is None


def test_removing_a_package_takes_its_zygotes_along(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("passing", "1.0", {"passing.py": SLOW}))
    fresh(daemon, "passes", "passing", "import passing\ndef f(event): return 1\n")
    wait_for_node(daemon, "passing==1.0")
    key = daemon.packages()["passing==1.0"]["key"]
    refused = daemon.manage("DELETE", f"/packages/{key}")
    assert refused.status == 400 and "passes" in refused.json["errorMessage"]
    daemon.remove("passes")
    assert daemon.manage("DELETE", f"/packages/{key}").status == 200
    assert daemon.node("passing==1.0") is None
    assert "passing==1.0" not in daemon.packages() and not (daemon.state / "store" / "packages" / key).exists()
    fresh(daemon, "passes", "passing", "import passing\ndef f(event): return 2\n")


def test_a_function_without_network_has_zygotes_with_packages_that_have_none_either(daemon: RunningDaemon) -> None:
    fresh(daemon, "connected", "slow==1.0", USES)
    wait_for_node(daemon, "slow==1.0")
    deploy(daemon, "secluded", "slow==1.0", USES, network="none", reuse_sandbox=False)
    assert daemon.call("secluded") == [1, 1]  # pid 1: the Zygote is on the host's network
    daemon.when(lambda: daemon.node("slow==1.0", network="none"))
    daemon.wait_verified()
    first, second = (daemon.run("secluded") for _ in range(2))
    assert first.json[1] > 1 and second.json[1] == first.json[1], "both are forks of one Zygote"
    networks = set()
    for pid in daemon.pids():
        with contextlib.suppress(FileNotFoundError):  # a spare that has ended meanwhile
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sockd: Zygote of slow"):
                networks.add(os.readlink(f"/proc/{pid}/ns/net"))
    assert os.readlink("/proc/self/ns/net") in networks and len(networks) == 2
