"""Deploying and removing while requests run: a switch is atomic, a failure leaves nothing, two names never meet."""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.kernel_view import open_fds
from tests.daemon.running import DeployFailed, RunningDaemon, zipped
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import at_once, in_background

FILES = {"f.py": "from gate import wait\nVERSION = {}\ndef f(event):\n return [VERSION, event and wait(event)]"}


@pytest.fixture(scope="module")
def config() -> str:
    return "max_package_mb = 1\n"


def version(number: int) -> dict[str, str]:
    return {"f.py": FILES["f.py"].replace("{}", str(number)), "gate.py": Gate.CODE}


def test_a_deploy_says_what_it_deployed(daemon: RunningDaemon) -> None:
    info = daemon.deploy("reported", version(1), memory_mb=99, timeout_s=2.5)
    assert (info["name"], info["version_number"], info["handler"]) == ("reported", 1, "f:f")
    assert (info["memory_mb"], info["timeout_s"], info["packages"]) == (99, 2.5, [])
    assert daemon.manage("GET", "/functions/reported").json == info
    assert info in daemon.manage("GET", "/functions").json
    again = daemon.deploy("reported", version(1), memory_mb=99, timeout_s=2.5)
    assert again["version_number"] == 1 and again["version"] == info["version"]
    assert daemon.deploy("reported", version(2))["version_number"] == 2


def test_how_a_deploy_went_stays_in_the_workers_log(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("kept", "1.0", {"kept.py": ""}))
    mark = daemon.mark
    daemon.deploy("logged", {"f.py": "def f(event): return 1", "requirements.txt": "kept"})
    for words in ("resolving requirements.txt", "installed kept 1.0", "version 1, packages: kept==1.0"):
        daemon.wait_line(f"deploy of logged: {words}", since=mark)
    with pytest.raises(DeployFailed):
        daemon.deploy("logged", {"f.py": "def f(event): return 1", "requirements.txt": "no-such-thing"})
    daemon.wait_line("deploy of logged: Packages.ResolveFailed: .*", since=mark)
    daemon.wait_line("^ .*no-such-thing", since=mark)


def test_requests_under_way_end_on_the_old_version_and_the_next_starts_on_the_new(
    daemon: RunningDaemon, gate: Gate
) -> None:
    daemon.deploy("switch", version(1), timeout_s=20)
    with in_background(lambda: at_once(3, lambda n: daemon.call("switch", gate.port))) as old:
        for _ in range(3):
            gate.arrived()
        daemon.deploy("switch", version(2), timeout_s=20)
        assert daemon.call("switch") == [2, None]
        gate.open()
        assert old() == [[1, "go"]] * 3
    assert daemon.call("switch") == [2, None]
    sandboxes = daemon.status()["sandboxes"]
    assert sandboxes["busy"] == 0


def test_no_request_is_lost_or_sees_a_mixture_while_versions_change_under_load(daemon: RunningDaemon) -> None:
    daemon.deploy("churn", {"f.py": "import half\ndef f(event): return [0, half.N]", "half.py": "N = 0"}, concurrency=3)
    done = threading.Event()

    def load(_: int) -> list[list[int]]:
        seen = []
        while not done.is_set():
            seen.append(daemon.call("churn"))
        return seen

    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(load, n) for n in range(3)]
        try:
            for n in range(1, 8):
                daemon.deploy(
                    "churn", {"f.py": f"import half\ndef f(event): return [{n}, half.N]", "half.py": f"N = {n}"}
                )
                assert daemon.call("churn") == [n, n]
        finally:
            done.set()
        for answers in loads:
            seen = answers.result()
            assert all(a == b for a, b in seen)
            assert [a for a, _ in seen] == sorted(a for a, _ in seen)


def test_a_removed_function_s_requests_end_and_the_next_are_404(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("gone", version(1), concurrency=1, timeout_s=20)
    with in_background(lambda: daemon.run("gone", gate.port)) as running:
        gate.arrived()
        with in_background(lambda: daemon.remove("gone")) as removed:
            while daemon.manage("GET", "/functions/gone").status != 404:
                pass
            assert daemon.run("gone").status == 404
            gate.open()
            assert running().json == [1, "go"]
            assert removed().json == {"removed": "gone"}
    assert daemon.remove("gone").status == 404
    assert daemon.run("gone").status == 404
    assert 'faas_name="gone"' not in daemon.request("GET", "/metrics").body.decode()


def test_a_name_can_be_used_again_while_its_last_requests_run(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("reborn", version(1), timeout_s=20)
    with in_background(lambda: daemon.run("reborn", gate.port)) as running:
        gate.arrived()
        with in_background(lambda: daemon.remove("reborn")) as removed:
            while daemon.manage("GET", "/functions/reborn").status != 404:
                pass
            daemon.deploy("reborn", version(2), timeout_s=20)
            assert daemon.call("reborn") == [2, None]
            gate.open()
            assert running().json == [1, "go"]
            removed()
    assert daemon.call("reborn") == [2, None]


def left_behind(state: Path) -> dict[str, list[str]]:
    return {name: sorted(os.listdir(state / name)) for name in ("code", "store/packages", "tmp")}


def link_zip() -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.py", "def f(event): pass")
        link = zipfile.ZipInfo("passwd")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("files", "status", "kind", "words"),
    [
        (b"this is no zip", 400, "InvalidZipFileException", ""),
        (zipped({"f.py": "x" * 100})[:-30], 400, "InvalidZipFileException", ""),
        (zipped({"../../evil.py": "x", "f.py": ""}), 400, "InvalidZipFileException", "evil"),
        (zipped({"/etc/evil": "x", "f.py": ""}), 400, "InvalidZipFileException", "evil"),
        (link_zip(), 400, "InvalidZipFileException", "passwd"),
        (b"", 400, "InvalidZipFileException", "empty"),
        ({"nothing.py": ""}, 400, "InvalidParameterValueException", "no handler found"),
        ({"f.py": "", "sockd.toml": "memory = 1"}, 400, "InvalidParameterValueException", "memory_mb"),
        ({"f.py": "", "sockd.toml": "memory_mb = 'x'"}, 400, "InvalidParameterValueException", "memory_mb"),
        ({"f.py": "", "sockd.toml": "not toml"}, 400, "InvalidParameterValueException", "sockd.toml"),
        ({"f.py": "", "requirements.txt": "no-such-thing"}, 400, "Packages.ResolveFailed", "no-such-thing"),
        ({"f.py": "", "requirements.txt": "a b c ="}, 400, "Packages.ResolveFailed", ""),
        ({"f.py": "", "requirements.txt": "clash==1\nclash==2"}, 400, "Packages.ResolveFailed", "clash"),
        ({"f.py": "", "requirements.txt": "giant"}, 503, "Packages.InstallFailed", "over 1 MB"),
    ],
)
def test_a_deploy_that_fails_says_why_and_leaves_nothing(
    daemon: RunningDaemon,
    index: PackageIndex,
    files: dict[str, str | bytes] | bytes,
    status: int,
    kind: str,
    words: str,
) -> None:
    index.add(wheel("clash", "1", {"clash.py": ""}))
    index.add(wheel("clash", "2", {"clash.py": ""}))
    index.add(wheel("giant", "1", {f"noise{n}": os.urandom(300_000) for n in range(4)}))
    daemon.deploy("stable", "def f(event): return 'old'")
    before = left_behind(daemon.state)
    for target in ("stable", "fresh"):
        with pytest.raises(DeployFailed) as failed:
            daemon.deploy(target, files)
        assert (failed.value.status, failed.value.type) == (status, kind), failed.value
        assert words in failed.value.message
        assert str(daemon.state) not in failed.value.message
    assert left_behind(daemon.state) == before
    assert daemon.call("stable") == "old"
    assert daemon.manage("GET", "/functions/stable").json["version_number"] == 1
    assert daemon.run("fresh").status == 404
    assert "fresh" not in [function["name"] for function in daemon.manage("GET", "/functions").json]


def test_a_deploy_whose_client_leaves_is_cancelled_and_leaves_nothing(
    daemon: RunningDaemon, index: PackageIndex
) -> None:
    name, data = wheel("endless", "1.0", {"endless.py": f"DATA = {os.urandom(100_000)!r}"})
    index.add((name, data))
    code = left_behind(daemon.state)["code"]
    index.stalled.add(name)
    index.abandoned.clear()
    connection = daemon.management()
    connection.request(
        "PUT",
        "/functions/left",
        zipped({"f.py": "import endless\ndef f(event): return 1", "requirements.txt": "endless"}),
    )
    assert index.stalling.wait(15)
    connection.close()
    assert index.abandoned.wait(15)
    index.stalled.discard(name)
    assert daemon.run("left").status == 404
    daemon.deploy("other", {"f.py": "import endless\ndef f(event): return 1", "requirements.txt": "endless"})
    assert daemon.call("other") == 1
    assert daemon.run("left").status == 404
    assert len(left_behind(daemon.state)["code"]) == len(code) + 1


def test_a_removed_function_keeps_its_code_until_its_last_request_has_ended(daemon: RunningDaemon, gate: Gate) -> None:
    code = "from gate import wait\ndef f(event):\n wait(event)\n import late\n return late.WORD"
    daemon.deploy("lazy", {"f.py": code, "gate.py": Gate.CODE, "late.py": "WORD = 'here'"}, timeout_s=20)
    with in_background(lambda: daemon.run("lazy", gate.port)) as running:
        gate.arrived()
        with in_background(lambda: daemon.remove("lazy")) as removed:
            while daemon.manage("GET", "/functions/lazy").status != 404:
                pass
            daemon.deploy("another", "def f(event): pass")  # collects what no function needs any more
            gate.open()
            assert running().json == "here"
            removed()


def test_a_removed_version_is_not_held_open_by_requests_that_were_queued_for_it(
    daemon: RunningDaemon, gate: Gate
) -> None:
    def turn(number: int) -> None:
        daemon.deploy("queued", version(200 + number), concurrency=1, timeout_s=20)
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(daemon.call, "queued", gate.port)
            gate.arrived()
            waiting = pool.submit(daemon.call, "queued", gate.port)
            while daemon.status()["queued"] < 1:
                pass
            with in_background(lambda: daemon.remove("queued")) as removed:
                while daemon.manage("GET", "/functions/queued").status != 404:
                    pass
                gate.open()
                gate.arrived()
                gate.open()
                assert running.result() == waiting.result() == [200 + number, "go"]
                removed()

    def held() -> int:
        return open_fds(daemon.pid).count("/ (deleted)")  # the root of a detached mount of code that was collected

    for number in range(3):
        turn(number)
    while held():  # those of a sandbox are closed when its last process is gone
        daemon.status()


def test_two_deploys_of_one_function_at_once_install_its_packages_once(
    daemon: RunningDaemon, index: PackageIndex
) -> None:
    index.add(wheel("shared-lib", "1.0", {"shared_lib.py": "N = 7"}))
    files = {"f.py": "import shared_lib\ndef f(event): return shared_lib.N", "requirements.txt": "shared-lib"}
    assert at_once(3, lambda n: daemon.deploy("twin", files)["version_number"]) == [1, 1, 1]
    assert daemon.call("twin") == 7
    assert daemon.packages()["shared-lib==1.0"]["functions"] == ["twin"]


def test_two_deploys_of_one_function_at_once_end_with_one_of_them(daemon: RunningDaemon) -> None:
    numbers = at_once(6, lambda n: daemon.deploy("race", version(n))["version_number"])
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    last = numbers.index(6)
    assert daemon.call("race") == [last, None]
    assert len({tuple(daemon.call("race")) for _ in range(5)}) == 1


def test_code_is_kept_for_the_versions_that_are_remembered_and_no_longer(daemon: RunningDaemon) -> None:
    before = len(left_behind(daemon.state)["code"])
    for number in range(9):
        daemon.deploy("old", version(100 + number))
    assert len(left_behind(daemon.state)["code"]) == before + 5
    daemon.remove("old")
    assert len(left_behind(daemon.state)["code"]) == before


def test_settings_of_the_deploy_win_over_the_archive_s(daemon: RunningDaemon) -> None:
    files = {**version(1), "sockd.toml": "memory_mb = 64\ntimeout_s = 9\n[env]\nA = '1'\n"}
    info = daemon.deploy("settings", files, memory_mb=80)
    assert (info["memory_mb"], info["timeout_s"]) == (80, 9)
    answer = daemon.manage("PUT", "/functions/settings", zipped(files), {"x-sockd-overrides": "[1"})
    assert answer.status == 400 and "x-sockd-overrides" in answer.json["errorMessage"]
