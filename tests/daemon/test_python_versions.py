"""Functions that ask for another Python of the host: `python = "3.13"`."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sockd.isolation.roots.interpreter import OWN_PYTHON
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.starts.test_zygote_tree_of_a_daemon import LOUD, SLOW
from tests.support.foreign import installed
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

OTHERS = tuple(version for version in ("3.11", "3.12", "3.13") if version != OWN_PYTHON.short)
OTHER = OTHERS[0]
SAYS = """
import os, sys
def f(event):
    return {"version": list(sys.version_info[:2]), "env": os.environ["AWS_EXECUTION_ENV"], "executable": sys.executable,
            "cached": __cached__, "has_cache": os.path.exists(__cached__)}
"""
USES = "import slow, picked\ndef f(event): return [slow.V, slow.PID, picked.TAG, slow.__file__]\n"


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    index.add(
        wheel(
            "slow",
            "1.0",
            {"slow/__init__.py": SLOW + LOUD + "V = 1\n"},
            requires=("only-new; python_version >= '3.13'",),
        )
    )
    index.add(wheel("only-new", "1.0", {"only_new.py": ""}))
    for tag in ("cp311", "cp312", "cp313"):
        index.add(wheel("picked", "1.0", {"picked.py": f"TAG = {tag!r}\n"}, tag=f"{tag}-none-any"))


def farms(daemon: RunningDaemon) -> int:
    """How many farms it has: processes that are the pid 1 of a namespace of Zygotes."""
    return sum(is_init(pid) for pid in daemon.pids())


def is_init(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
    except FileNotFoundError:
        return False
    return b"sockd.isolation.farm.farm_init" in words and len(numbers) > 1 and numbers[-1] == "1"


def node_of(daemon: RunningDaemon, version: str, *packages: str) -> Mapping[str, Any] | None:
    """The Zygote of exactly these packages in that Python."""
    interpreter = "" if version == OWN_PYTHON.short else f"python:{version}"
    nodes = (node for node in daemon.nodes() if node["interpreter"] == interpreter)
    return next((node for node in nodes if node["packages"] == set(packages)), None)


def test_a_worker_whose_functions_ask_for_none_has_one_farm(daemon: RunningDaemon) -> None:
    daemon.deploy("plain", SAYS)
    daemon.deploy("own", SAYS, python=OWN_PYTHON.short)
    for name in ("plain", "own"):
        assert daemon.call(name)["version"] == list(OWN_PYTHON.version[:2])
    assert farms(daemon) == 1 and all(node["interpreter"] == "" for node in daemon.nodes())


@pytest.mark.parametrize("version", OTHERS)
def test_a_function_is_run_by_the_python_that_it_asks_for(daemon: RunningDaemon, version: str) -> None:
    python, name = installed(version), f"says-{version[2:]}"
    daemon.deploy(name, {"f.py": SAYS, "sockd.toml": f'python = "{version}"\n'})
    said = daemon.call(name)
    assert said["version"] == list(python.version[:2]) and said["env"] == f"AWS_Lambda_python{version}"
    assert said["executable"] == python.executable
    assert said["cached"].endswith(f"f.{python.cache_tag}.pyc") and said["has_cache"], (
        "its bytecode is there before it starts"
    )


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.timeout(120)
def test_packages_are_resolved_compiled_and_imported_ahead_for_it(daemon: RunningDaemon, version: str) -> None:
    python, name = installed(version), f"uses-{version[2:]}"
    files = {"f.py": USES, "requirements.txt": "slow\npicked\n"}
    deployed = daemon.deploy(name, files, python=version, reuse_sandbox=False)
    assert deployed["python"] == version
    assert ("only-new==1.0" in deployed["packages"]) is (version == "3.13"), "markers are this Python's"
    answer = daemon.call(name)
    assert answer[2] == f"cp{version.replace('.', '')}", "of a package with several wheels, its own"
    directory = Path(answer[3]).parts[2]
    assert directory.endswith(f".{version}")
    cached = (
        daemon.state / "store" / "packages" / directory / "slow" / "__pycache__" / f"__init__.{python.cache_tag}.pyc"
    )
    assert cached.is_file()
    imported = [package for package in deployed["packages"] if not package.startswith("only-new")]
    daemon.when(lambda: node_of(daemon, version, *imported))
    again = daemon.run_learned(name)
    assert again.json[:1] == [1] and daemon.log_of(name, again) == "", "it was imported in a Zygote"


LOOKS = """
import http.client
def f(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/", headers={"Sec-Fetch-Dest": "document"})
    return connection.getresponse().status
"""


@pytest.mark.parametrize("version", [OWN_PYTHON.short, *OTHERS])
def test_no_function_sees_the_page(daemon: RunningDaemon, version: str) -> None:
    installed(version)
    daemon.deploy("looks", LOOKS, python=version, network="host")
    assert daemon.call("looks", daemon.port) == 403
    assert daemon.request("GET", "/", headers={"Sec-Fetch-Dest": "document"}).status == 200


def test_functions_of_two_pythons_share_no_package_and_no_zygote(daemon: RunningDaemon) -> None:
    versions = [OWN_PYTHON.short, *(installed(version).short for version in OTHERS)]
    answers = {}
    for version in versions:
        name = f"apart-{version[2:]}"
        daemon.deploy(name, {"f.py": USES, "requirements.txt": "slow\npicked\n"}, python=version)
        answers[version] = daemon.call(name)
    assert len({answer[3] for answer in answers.values()}) == len(versions)
    assert {answer[2] for answer in answers.values()} == {f"cp{version.replace('.', '')}" for version in versions}


def test_a_function_without_network_has_a_zygote_that_cannot_reach_it(daemon: RunningDaemon) -> None:
    installed(OTHER)
    code = "import socket, sys\ndef f(event): return [list(sys.version_info[:2]), [name for _, name in socket.if_nameindex()]]\n"
    daemon.deploy("alone", code, python=OTHER, network="none")
    assert daemon.call("alone") == [[3, int(OTHER[2:])], ["lo"]]


def test_its_zygotes_are_made_anew_when_they_are_killed(daemon: RunningDaemon) -> None:
    version = list(installed(OTHER).version[:2])
    daemon.deploy("killed", SAYS, python=OTHER, reuse_sandbox=False)
    assert daemon.call("killed")["version"] == version
    killed = zygotes_of(daemon, OTHER)  # and the spares among them: one that is given to a request takes it with it
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    daemon.when(lambda: daemon.pids().isdisjoint(killed))
    assert daemon.call("killed")["version"] == version


def zygotes_of(daemon: RunningDaemon, version: str) -> list[int]:
    found = []
    for pid in daemon.pids():
        try:
            is_zygote = Path(f"/proc/{pid}/comm").read_text() == "sockd-zygote\n"
            if is_zygote and version in os.readlink(f"/proc/{pid}/exe"):
                found.append(pid)
        except FileNotFoundError:
            continue
    assert found
    return found


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.99", "not installed on this worker; installed are"),
        ("3.10", '"3.11" or a later'),
        ("2.7", "or a later"),
        ("three", "or a later"),
    ],
)
def test_a_version_that_cannot_be_had_is_refused_with_the_reason(
    daemon: RunningDaemon, version: str, words: str
) -> None:
    with pytest.raises(DeployFailed, match=words) as refused:
        daemon.deploy("refused", SAYS, python=version)
    assert refused.value.status == 400 and refused.value.type == "InvalidParameterValueException"


def test_what_the_code_requires_is_compared_with_the_python_that_it_asks_for(daemon: RunningDaemon) -> None:
    python = installed(OTHER)
    required = f'requires-python = "=={OTHER}.*"'
    files = {"f.py": SAYS, "pyproject.toml": f'[project]\nname = "f"\nversion = "1"\n{required}\n'}
    with pytest.raises(DeployFailed, match=r"name another in sockd\.toml: python"):
        daemon.deploy("requires", files, python=OWN_PYTHON.short)
    daemon.deploy("requires", files, python=OTHER)
    assert daemon.call("requires")["version"] == list(python.version[:2])


def test_syntax_is_that_of_the_python_that_it_asks_for(daemon: RunningDaemon) -> None:
    installed("3.11"), installed("3.12")
    code = "type Number = int\ndef f(event): return [Number.__name__]\n"
    with pytest.raises(DeployFailed, match="SyntaxError"):
        daemon.deploy("syntax", code, check_handler=True, python="3.11")
    daemon.deploy("syntax", code, check_handler=True, python="3.12")
    assert daemon.call("syntax") == ["Number"]
