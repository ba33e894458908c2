"""Packages that functions find without naming them (`packages.default`), as boto3 on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.starts.test_zygote_tree_of_a_daemon import LOUD, SLOW, wait_for_node
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

USES = "import boto3\ndef f(event): return [boto3.V, boto3.CORE]\n"
PROBES = """
try:
    import boto3
except ImportError:
    boto3 = None
def f(event): return boto3 and boto3.V
"""
BOTO3 = SLOW + LOUD + "import botocore\nCORE = botocore.V\n"


@pytest.fixture(scope="module", autouse=True)
def packages(index: PackageIndex) -> None:
    for version in ("1.0", "2.0"):
        index.add(wheel("boto3", version, {"boto3.py": f"{BOTO3}V = '{version}'\n"}, requires=("botocore>=2",)))
    for version in ("1.0", "2.0", "2.5", "3.0"):
        index.add(wheel("botocore", version, {"botocore.py": f"V = '{version}'\n"}))
    tools = {"tools.py": "def client():\n    import boto3\n    return boto3.V\n"}
    index.add(wheel("tools", "1.0", tools, requires=('boto3>=1 ; extra == "aws"',)))


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None) -> Iterator[RunningDaemon]:
    """Its index does not answer."""
    config = '[packages]\nindex_url = "http://127.0.0.1:1/simple"\n'
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("offline") / "state", config, env={"UV_HTTP_RETRIES": "0"})
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


def packages_of(daemon: RunningDaemon, name: str, files: dict[str, str], **settings: Any) -> list[str]:
    found: list[str] = daemon.deploy(name, files, **settings)["packages"]
    return found


def test_a_function_imports_them_without_naming_them(daemon: RunningDaemon, index: PackageIndex) -> None:
    assert packages_of(daemon, "uses", {"f.py": USES}) == ["boto3==2.0", "botocore==3.0"]
    assert daemon.call("uses") == ["2.0", "3.0"]
    asked = len(index.requests)
    assert packages_of(daemon, "again", {"f.py": "# 2\n" + USES}) == ["boto3==2.0", "botocore==3.0"]
    assert len(index.requests) == asked, "they are resolved once"


def test_they_are_kept_when_the_index_has_others(daemon: RunningDaemon, index: PackageIndex) -> None:
    packages_of(daemon, "uses", {"f.py": USES})
    index.add(wheel("boto3", "9.0", {"boto3.py": ""}))
    try:
        assert "boto3==2.0" in packages_of(daemon, "later", {"f.py": "# later\n" + USES})
    finally:
        del index.files["boto3-9.0-py3-none-any.whl"]


def test_a_function_that_mentions_none_has_none_and_asks_no_one(daemon: RunningDaemon, index: PackageIndex) -> None:
    asked = len(index.requests)
    assert packages_of(daemon, "plain", {"f.py": "def f(event): return __import__('bo' + 'to3')"}) == []
    assert len(index.requests) == asked
    assert daemon.run("plain").json["errorType"] == "ModuleNotFoundError"


def test_a_package_that_may_use_them_brings_them(daemon: RunningDaemon) -> None:
    files = {"f.py": "import tools\ndef f(event): return tools.client()\n", "requirements.txt": "tools"}
    assert packages_of(daemon, "tools", files) == ["boto3==2.0", "botocore==3.0", "tools==1.0"]
    assert daemon.call("tools") == "2.0"


def test_a_functions_own_version_wins(daemon: RunningDaemon) -> None:
    assert packages_of(daemon, "own", {"f.py": USES, "requirements.txt": "boto3==1.0"}) == [
        "boto3==1.0",
        "botocore==3.0",
    ]
    assert packages_of(daemon, "own", {"f.py": USES, "boto3.py": "V = CORE = 'mine'\n"}) == []
    assert daemon.call("own") == ["mine", "mine"]


def test_what_the_function_names_besides_stays_as_it_is(daemon: RunningDaemon) -> None:
    fits = packages_of(daemon, "fits", {"f.py": USES, "requirements.txt": "botocore==2.5"})
    assert fits == ["boto3==2.0", "botocore==2.5"] and daemon.call("fits") == ["2.0", "2.5"]
    assert packages_of(daemon, "old", {"f.py": PROBES, "requirements.txt": "botocore==1.0"}) == ["botocore==1.0"]
    daemon.wait_line(r"boto3 \(packages.default\) left out")
    assert daemon.call("old") is None


def test_they_can_be_switched_off(daemon: RunningDaemon) -> None:
    assert packages_of(daemon, "off", {"f.py": PROBES, "sockd.toml": "[packages]\ndefault = false\n"}) == []
    assert daemon.call("off") is None


def test_a_probe_finds_the_same_in_first_and_learned_starts(daemon: RunningDaemon) -> None:
    """Both for a function that has them and for one that has not."""
    names = {"has": {"f.py": PROBES}, "not": {"f.py": PROBES, "sockd.toml": "[packages]\ndefault = false\n"}}
    answers: dict[str, list[Any]] = {name: [] for name in names}
    for turn in range(3):
        for name, files in names.items():
            packages_of(daemon, name, {**files, "f.py": f"# {turn}\n{files['f.py']}"}, reuse_sandbox=False)
            answers[name] += [daemon.call(name), daemon.call(name)]
        wait_for_node(daemon, "boto3==2.0", "botocore==3.0")
    assert answers == {"has": ["2.0"] * 6, "not": [None] * 6}


def test_a_host_without_an_index_deploys_what_does_not_need_them(offline: RunningDaemon) -> None:
    assert packages_of(offline, "plain", {"f.py": "def f(event): return 1"}) == []
    for turn in range(2):
        assert packages_of(offline, "probes", {"f.py": f"# {turn}\n{PROBES}"}) == []
        assert offline.call("probes") is None
    offline.wait_line("left out: the package index did not answer")
    offline.wait_line("could not be resolved a short time ago")


def test_the_lock_outlives_the_daemon(tmp_path: Path, index: PackageIndex) -> None:
    config = f'[packages]\nindex_url = "{index.url}"\n'
    first = RunningDaemon.start(tmp_path / "state", config)
    try:
        packages_of(first, "uses", {"f.py": USES})
        first.terminate()
        asked = len(index.requests)
        second = RunningDaemon.start(tmp_path / "state", config)
        try:
            assert "boto3==2.0" in packages_of(second, "more", {"f.py": "# more\n" + USES})
            assert len(index.requests) == asked
            second.terminate()
        finally:
            second.close()
    finally:
        first.close()
