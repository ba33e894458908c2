"""Builds from source: what a deploy gets that allows them, what hostile builds reach, and what is left of those that fail."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.network.own_addresses import own_addresses
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.versions.numbered import until
from tests.support import sockd_template
from tests.support.servers.package_index import PackageIndex, sdist, wheel

pytestmark = pytest.mark.root

PIDS = 64
CONFIG = f"[builds]\nmemory_mb = 256\ntmp_mb = 96\npids = {PIDS}\ndeadline_s = 12.0\nwheel_mb = 1\n"
PLAIN = "return make(directory, {'built.py': 'WHO = \"built\"'})"


@pytest.fixture(scope="module")
def config() -> str:
    return CONFIG


def code(module: str, name: str = "WHO") -> str:
    return f"import {module}\ndef f(event): return {module}.{name}\n"


def deploy(daemon: RunningDaemon, requirements: str, name: str = "f", **settings: Any) -> dict[str, Any]:
    files = {"f.py": code("built"), "requirements.txt": requirements}
    return daemon.deploy(name, files, **{"build": True, **settings})


def refused(daemon: RunningDaemon, requirements: str, **settings: Any) -> DeployFailed:
    with pytest.raises(DeployFailed) as failure:
        deploy(daemon, requirements, "refused", **settings)
    assert failure.value.status == 400 and str(daemon.state) not in failure.value.message
    assert leftovers(daemon) == []
    return failure.value


def leftovers(daemon: RunningDaemon) -> list[str]:
    return os.listdir(daemon.state / "tmp" / "packages")


def sockd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return sockd_template.run([sys.executable, "-m", "sockd", *arguments])


def add(index: PackageIndex, name: str, build: str) -> str:
    """Returns: its sha256."""
    return index.add(sdist(name, "1.0", build, index=index.url))


def test_without_leave_a_source_is_refused_and_the_way_is_named(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "closed", PLAIN)
    for requirement in ("closed", "closed @ git+https://127.0.0.1:1/x", "closed @ https://127.0.0.1:1/x.tar.gz"):
        failure = refused(daemon, requirement, build=False)
        assert failure.type == "Packages.BuildNeeded" and "build = true" in failure.message
    assert not [path for path in index.requests if "closed-1.0" in path or "said" in path]


def test_the_command_line_names_the_option_that_allows_builds(
    daemon: RunningDaemon, index: PackageIndex, tmp_path: Path
) -> None:
    add(index, "optional", PLAIN)
    (tmp_path / "f.py").write_text(code("built"))
    (tmp_path / "requirements.txt").write_text("optional\n")
    command = ["deploy", str(tmp_path), "--name", "optional", "--memory", "64", "--state-dir", str(daemon.state)]
    refusal = sockd(*command)
    assert refusal.returncode == 1 and "error: error:" not in refusal.stderr
    fix = re.search(r"fix: \S*sockd (.*)\n", refusal.stderr)
    assert fix and fix[1].split() == [*command, "--build"]
    done = sockd(*fix[1].split())
    assert done.returncode == 0 and "building optional 1.0" in done.stderr
    assert daemon.call("optional") == "built"


def test_an_sdist_is_built_once_for_all_functions(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "once", PLAIN)
    deploying = [threading.Thread(target=deploy, args=(daemon, "once", name), daemon=True) for name in ("one", "two")]
    for thread in deploying:
        thread.start()
    for thread in deploying:
        thread.join(60)
    deploy(daemon, "once", "three")
    assert [daemon.call(name) for name in ("one", "two", "three")] == ["built"] * 3
    assert index.requests.count("/simple/said-once-built/") == 1
    assert leftovers(daemon) == []


def test_the_setting_may_be_in_the_file(daemon: RunningDaemon, index: PackageIndex) -> None:
    digest = add(index, "infile", PLAIN)
    files = {"f.py": code("built"), "sockd.toml": "build = true\n"}
    daemon.deploy("infile", {**files, "requirements.txt": f"infile==1.0 --hash=sha256:{digest}"})
    assert daemon.call("infile") == "built"
    assert "hashes" in refused(daemon, f"infile==1.0 --hash=sha256:{'0' * 64}").message


def test_a_wheel_is_taken_where_there_is_one(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "mixed", PLAIN)
    index.add(wheel("both", "1.0", {"both.py": ""}))
    index.add(sdist("both", "1.0", "raise SystemExit('not wanted')", index=index.url))
    info = deploy(daemon, "mixed\nboth", "mixed")
    assert info["packages"] == ["both==1.0", "mixed==1.0"]
    assert "/simple/said-both-built/" not in index.requests


def test_an_archive_by_its_url(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "direct", PLAIN)
    deploy(daemon, f"direct @ {index.file_url('direct-1.0.tar.gz')}", "direct")
    assert daemon.call("direct") == "built"


PROBE = """
import ctypes, json, socket
def tried(what):
    try:
        return repr(what())
    except BaseException as error:
        return type(error).__name__
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)
def connect():
    socket.socket(socket.AF_UNIX).connect({state!r} + "/sockd.sock")
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
found = {{
    "shadow": tried(lambda: open("/etc/shadow").read()),
    "state": tried(lambda: os.listdir({state!r})),
    "socket": tried(connect),
    "setuid": tried(lambda: os.setuid(0)),
    "mount": tried(lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)),
    "unshare": tried(lambda: call("unshare", 0x10000000)),
    "write": tried(lambda: open("/usr/written", "w")),
    "packages": tried(lambda: open("/packages/written", "w")),
    "tools": tried(lambda: open("/var/task/uv", "r+")),
    "pids": [pid for pid in os.listdir("/proc") if pid.isdigit() and len(open(f"/proc/{{pid}}/cmdline").read()) < 0],
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "seccomp": status["Seccomp"].strip(),
    "secrets": [name for name in os.environ if "PASSWORD" in name or "SECRET" in name],
}}
return make(directory, {{"built.py": "WHO = " + repr(found)}})
"""


def test_what_a_build_can_reach(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "probe", PROBE.format(state=str(daemon.state)))
    deploy(daemon, "probe", "probe")
    found = daemon.call("probe")
    assert found.pop("capabilities") == ["0" * 16] * 4
    assert found.pop("seccomp") == "2" and found.pop("secrets") == [] and found.pop("pids") == []
    allowed = {"FileNotFoundError", "PermissionError", "OSError"}
    assert {name: what for name, what in found.items() if what not in allowed} == {}


@pytest.mark.parametrize(
    ("name", "build", "words"),
    [
        ("climbs", "return make(directory, {'../../climbed.py': ''})", "outside of it"),
        ("absolute", "return make(directory, {'/etc/climbed.py': ''})", "outside of it"),
        (
            "other",
            "return make(directory, {'x.py': ''}, 'requests-1.0-py3-none-any.whl')",
            "declares name requests",
        ),
        (
            "renames",
            "global METADATA; METADATA = METADATA.replace(NAME, 'requests'); return make(directory, {'x.py': ''})",
            "says that it is 'requests'",
        ),
        (
            "foreign",
            "return make(directory, {'x.py': ''}, f'{STEM}-cp27-cp27m-win32.whl')",
            "not for Python 3.* on this worker",
        ),
        ("large", "return make(directory, {'x.py': 'x' * (2 << 20)})", "builds.wheel_mb"),
        (
            "many",
            "return make(directory, {f'x{number}.py': '' for number in range(20100)})",
            "(20104|builds.wheel_mb)",
        ),
        (
            "no-wheel",
            "open(f'{directory}/{STEM}-py3-none-any.whl', 'wb').write(b'PK?' * 9); return f'{STEM}-py3-none-any.whl'",
            "zip",
        ),
        ("words", "raise RuntimeError('the compiler is ' + 'out of tune')", "the compiler is out of tune"),
    ],
)
def test_a_wheel_or_a_build_that_is_wrong_is_refused(
    daemon: RunningDaemon, index: PackageIndex, name: str, build: str, words: str
) -> None:
    add(index, name, build)
    failure = refused(daemon, name)
    assert failure.type == "Packages.BuildFailed"
    assert name in failure.message
    assert re.search(words, failure.message)
    assert f"{name}==1.0" not in daemon.packages()


def test_a_package_that_was_built_holds_no_module_of_another(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("victim", "1.0", {"victim.py": "WHO = 'victim'"}))
    build = "return make(directory, {'built.py': 'WHO = \"built\"', 'victim.py': 'WHO = \"built\"'})"
    add(index, "a-shadow", build)
    failure = refused(daemon, "a-shadow\nvictim")
    assert failure.type == "Packages.BuildFailed"
    assert "a-shadow 1.0, which was built from source, holds victim, a module of victim" in failure.message
    deploy(daemon, "a-shadow", "alone")
    assert daemon.call("alone") == "built"


def test_a_build_does_not_reach_the_host(daemon: RunningDaemon, index: PackageIndex) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        hosts = [str(each.network_address) for each in own_addresses() if each.version == 4]
        build = f"""
            import socket
            found = {{}}
            for host in {hosts!r} + ["127.0.0.1", "127.9.9.9", "localhost"]:
                try:
                    socket.create_connection((host, {port}), 5).close()
                except OSError as error:
                    found[host] = type(error).__name__
            return make(directory, {{"built.py": "WHO = " + repr(found)}})
            """
        add(index, "connects", build)
        deploy(daemon, "connects", "connects")
        assert "0.0.0.0" in hosts and daemon.call("connects") == dict.fromkeys(
            [*hosts, "127.0.0.1", "127.9.9.9", "localhost"], "PermissionError"
        )
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_fork_bomb_ends_at_the_limit(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(
        index,
        "bomb",
        """
        import signal
        n = 0
        try:
            while True:
                if os.fork() == 0:
                    signal.pause()
                n += 1
        except OSError:
            say(f"forks-{n}")
            raise
        """,
    )
    before = daemon.pids()
    failure = refused(daemon, "bomb")
    reached = [
        int(path.strip("/").rpartition("-")[2])
        for path in index.requests
        if "said-bomb-" in path and "built" not in path
    ]
    assert len(reached) == 1 and 1 < reached[0] < PIDS
    assert "builds.deadline_s" in failure.message  # its children hold the output that the installer reads
    until(lambda: len(daemon.pids()) <= len(before) + 8)


def test_a_full_disk_is_the_builds_own(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "fills", "open('/tmp/full', 'wb').write(bytes(200 << 20))")
    assert "No space left on device" in refused(daemon, "fills").message


def test_the_memory_limit_is_named(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "eats", "x = [bytearray(b'x' * (8 << 20)) for _ in range(100)]")
    assert "builds.memory_mb" in refused(daemon, "eats").message


def test_the_deadline_is_named(daemon: RunningDaemon, index: PackageIndex) -> None:
    add(index, "hangs", "import signal; signal.pause()")
    assert "builds.deadline_s" in refused(daemon, "hangs").message


def test_a_daemon_that_dies_in_a_build_leaves_nothing(tmp_path: Path, index: PackageIndex) -> None:
    add(index, "waits", "say('waits'); import signal; signal.pause()")
    state = tmp_path / "state"
    config = f'[packages]\nindex_url = "{index.url}"\n'
    daemon = RunningDaemon.start(state, config)
    try:
        deploying = threading.Thread(target=lambda: _ignored(daemon), daemon=True)
        deploying.start()
        until(lambda: "/simple/said-waits-waits/" in index.requests)
        assert leftovers(daemon)
        daemon.kill()
        deploying.join(10)
        daemon.end_reading()
        daemon = RunningDaemon.start(state, config)
        assert leftovers(daemon) == [] and daemon.packages() == {}
        add(index, "later", PLAIN)
        deploy(daemon, "later")
        assert daemon.call("f") == "built"
        assert daemon.terminate() == 0
    finally:
        daemon.close()


def _ignored(daemon: RunningDaemon) -> None:
    """A deploy whose daemon is killed."""
    try:
        deploy(daemon, "waits")
    except (OSError, ValueError, IndexError, http.client.HTTPException):
        return
