"""Decorated functions on a real worker: a script that calls them, `sockd deploy FILE.py`, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import REPO, RunningDaemon
from tests.support.nobody import NOBODY, needs_nobody
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

APP = """
import os
from dataclasses import dataclass
import sockd
from beside import double

@dataclass
class Point:
    x: int
    y: int

@sockd.function(memory_mb=64)
def total(x, y=1):
    return {"sum": double(x) + y, "at": os.getcwd()}

@sockd.function
def turned(point):
    return Point(point.y, point.x)

@sockd.function
async def pair(x):
    return (x, x)

@sockd.function
def fails(x):
    def deeper():
        raise KeyError(x)
    deeper()

@sockd.function(packages=["somepackage==1.0"])
def versions():
    import somepackage
    return somepackage.VERSION

@sockd.function(timeout_s=0.2)
def hangs():
    import threading
    threading.Event().wait()

@sockd.function(pickle=False)
def plain(x):
    return (x,)

@sockd.function
def inside():
    return total.remote(1)
"""
SCRIPT = """
if __name__ == "__main__":
    import json
    def error(call, *arguments):
        try:
            call(*arguments)
        except Exception as error:
            return [type(error).__name__, str(error)]
    print(json.dumps({
        "total": total.remote(3, y=4),
        "here": total(3)["at"] == os.getcwd(),
        "turned": turned.remote(Point(1, 2)) == Point(2, 1),
        "pair": pair.remote(5) == (5, 5),
        "map": [each["sum"] for each in total.map(range(40))],
        "spawn": total.spawn(1).result()["sum"],
        "fails": error(fails.remote, "seven"),
        "failures": [type(each).__name__ for each in fails.map([1, 2], return_exceptions=True)],
        "versions": versions.remote(),
        "hangs": error(hangs.remote),
        "plain": error(plain.remote, 1),
        "inside": error(inside.remote),
    }))"""


@pytest.fixture
def project(tmp_path: Path, index: PackageIndex) -> Path:
    index.add(wheel("somepackage", "1.0", {"somepackage.py": "VERSION = '1.0'\n"}))
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("def double(x): return 2 * x\n")
    (project / "app.py").write_text(APP + SCRIPT)
    return project


def run(daemon: RunningDaemon, *command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A client's process."""
    known = {name: value for name, value in os.environ.items() if name != "SOCKD_URL"}
    paths = {"SOCKD_STATE_DIR": str(daemon.state), "PYTHONPATH": str(REPO), "XDG_CONFIG_HOME": str(cwd.parent)}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=cwd, env={**known, **paths, **env}, capture_output=True, text=True, timeout=30)


def version(daemon: RunningDaemon, name: str) -> int:
    number: int = daemon.manage("GET", f"/functions/{name}").json["version_number"]
    return number


def test_a_script_calls_its_functions_as_if_they_were_here(daemon: RunningDaemon, project: Path) -> None:
    done = run(daemon, "app.py", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no failure, as they are raised"
    said = json.loads(done.stdout)
    kind, words = said.pop("fails")
    assert kind == "RemoteError" and words.startswith("KeyError: 'seven'\n\nIn the sandbox:\nTraceback")
    assert "in deeper\n    raise KeyError(x)\n" in words and "sockd.py" not in words
    kind, words = said.pop("hangs")
    assert kind == "RemoteError" and words.startswith("Sandbox.Timedout: ")
    kind, words = said.pop("plain")
    assert kind == "RemoteError" and "pickle=False" in words
    kind, words = said.pop("inside")
    assert kind == "RemoteError" and "within a function call others directly" in words
    assert said == {
        "total": {"sum": 10, "at": "/var/task"},
        "here": True,
        "turned": True,
        "pair": True,
        "map": [2 * x + 1 for x in range(40)],
        "spawn": 3,
        "failures": ["RemoteError", "RemoteError"],
        "versions": "1.0",
    }
    assert daemon.call("total", {"x": 2, "y": 5})["sum"] == 9, "others call it with plain JSON"

    assert run(daemon, "app.py", cwd=project).returncode == 0
    assert version(daemon, "total") == 1, "nothing has changed"
    (project / "beside.py").write_text("def double(x): return 3 * x\n")
    changed = json.loads(run(daemon, "app.py", cwd=project).stdout)
    assert changed["total"]["sum"] == 13 and version(daemon, "total") == 2


def test_a_file_is_deployed_with_all_its_functions(daemon: RunningDaemon, project: Path) -> None:
    (project / "two.py").write_text(
        "import sockd\n@sockd.function(memory_mb=48)\ndef first(x): return x\n"
        "@sockd.function(name='other-name')\ndef second(x): return -x\n"
    )
    done = run(daemon, "-m", "sockd", "deploy", "two.py", "--json", cwd=project)
    assert done.returncode == 0, done.stderr
    assert [(each["name"], each["memory_mb"]) for each in json.loads(done.stdout)] == [
        ("first", 48),
        ("other-name", 128),
    ]
    assert daemon.call("other-name", 4) == -4
    assert run(daemon, "-m", "sockd", "deploy", "two.py", cwd=project).stdout.startswith("first: version 1 ")


@pytest.mark.parametrize(
    ("code", "options", "words"),
    [
        ("x = 1", (), "no function with @sockd.function"),
        ("def f(event): pass", (), "sockd deploy "),
        ("import nothing_of_this_name", (), "inside that function"),
        ("import sockd\n@sockd.function(memory=3)\ndef f(x): pass", (), "did you mean 'memory_mb'"),
        ("import sockd\n@sockd.function(tmp_mb=[object()])\ndef f(x): pass", (), "a setting must be text"),
        ("import sockd\n@sockd.function\ndef f(x): pass", ("--memory", "64"), "--memory does not apply to a file"),
    ],
)
def test_what_cannot_be_deployed_says_why(
    daemon: RunningDaemon, project: Path, code: str, options: tuple[str, ...], words: str
) -> None:
    (project / "wrong.py").write_text(code)
    done = run(daemon, "-m", "sockd", "deploy", "wrong.py", *options, cwd=project)
    assert done.returncode != 0 and words in done.stderr


def test_another_worker_than_ours_is_called_and_not_deployed_to(daemon: RunningDaemon, project: Path) -> None:
    code = "import sockd\n@sockd.function\ndef far(x): return x\nif __name__ == '__main__': print(far.remote(1))\n"
    (project / "far.py").write_text(code)
    done = run(daemon, "far.py", cwd=project, SOCKD_URL="http://127.0.0.1:1")
    assert "NoWorker: no worker answers at http://127.0.0.1:1" in done.stderr
    assert daemon.manage("GET", "/functions/far").status == 404
    nobody = run(daemon, "far.py", cwd=project, SOCKD_STATE_DIR=str(project), SOCKD_URL=daemon.url)
    assert "DeployFailed: " in nobody.stderr and "sockd deploy FILE.py" in nobody.stderr
    assert run(daemon, "far.py", cwd=project, SOCKD_URL=daemon.url).stdout == "1\n"
    daemon.deploy("far", "def f(event): return 7", force=True)
    foreign = run(daemon, "far.py", cwd=project, SOCKD_STATE_DIR=str(project), SOCKD_URL=daemon.url)
    assert "OtherCode: " in foreign.stderr and "nothing ran" in foreign.stderr


def test_a_map_makes_a_call_again_whose_start_was_too_late(daemon: RunningDaemon, project: Path) -> None:
    """The start that checks the deploy gets its word. The next one waits for a word that does not come; the last one gets it."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as held:
        (project / "late.py").write_text(
            f"import socket, sockd\nif __name__ != '__main__':\n"
            f"    socket.create_connection(('127.0.0.1', {server.getsockname()[1]})).recv(1)\n"
            "@sockd.function(init_timeout_s=2)\ndef late(x): return x\n"
            "if __name__ == '__main__': print(late.map([7]))\n"
        )

        def answer() -> None:
            held.enter_context(server.accept()[0]).send(b"x")
            held.enter_context(server.accept()[0])
            held.enter_context(server.accept()[0]).send(b"x")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        done = run(daemon, "late.py", cwd=project)
        assert (done.stdout.strip(), done.returncode) == ("[7]", 0), done.stderr
        answering.join(5)


def test_a_decorated_function_has_30_seconds_unless_it_says_otherwise(daemon: RunningDaemon, project: Path) -> None:
    (project / "times.py").write_text(
        "import sockd\n@sockd.function\ndef usual(): pass\n@sockd.function(timeout_s=4)\ndef own(): pass\n"
    )
    done = run(daemon, "-m", "sockd", "deploy", "times.py", "--json", cwd=project)
    assert [each["timeout_s"] for each in json.loads(done.stdout)] == [30.0, 4.0]


PRINTING = """
import sys
import sockd
from gate import wait

@sockd.function(timeout_s=20)
def talks(port, fails):
    print("first of", port)
    wait(port)
    print("\\x1b[2Jlast", file=sys.stderr)
    if fails:
        raise KeyError("missing")
    return port

@sockd.function(pickle=False)
def plainly(x):
    print("plain", x)

@sockd.function(prints=False)
def silent():
    print("not to be seen")

if __name__ == "__main__":
    port = int(sys.argv[1])
    try:
        talks.remote(port, len(sys.argv) > 2)
    except sockd.RemoteError as error:
        print(error.type)
    plainly.remote(1)
    silent.remote()
"""


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_function_prints_is_shown_to_its_caller_while_it_runs(
    daemon: RunningDaemon, tmp_path: Path, gate: Gate, fails: bool
) -> None:
    project = tmp_path / "talking"
    project.mkdir()
    (project / "app.py").write_text(PRINTING)
    (project / "gate.py").write_text(Gate.CODE)
    paths = {"SOCKD_STATE_DIR": str(daemon.state), "PYTHONPATH": str(REPO), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "app.py", str(gate.port), *["fails"] * fails]
    known = {name: value for name, value in os.environ.items() if name != "SOCKD_URL"}
    with subprocess.Popen(
        command, cwd=project, env={**known, **paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None and caller.stderr is not None
        gate.arrived()
        assert caller.stderr.readline() == f"first of {gate.port}\n", "while it waits"
        gate.open()
        rest, said = caller.stderr.read(), caller.stdout.read()
    for name in ("talks", "plainly", "silent"):  # the next one deploys them from another directory
        daemon.remove(name)
    assert caller.returncode == 0, rest
    assert rest == "\\x1b[2Jlast\nplain 1\n", "once, escaped, and without the failure, which is raised"
    assert said == ("KeyError\n" if fails else "")


@needs_nobody
def test_no_one_else_is_shown_what_a_function_prints(daemon: RunningDaemon, tmp_path: Path) -> None:
    project = tmp_path / "public"
    project.mkdir()
    (project / "app.py").write_text("import sockd\n@sockd.function(pickle=False)\ndef reported(): print('secret')\n")
    assert run(daemon, "-m", "sockd", "deploy", "app.py", cwd=project).returncode == 0
    code = "import app; print(app.reported.remote())"
    for directory in (tmp_path, project):
        directory.chmod(0o755)
    command = [*NOBODY, sys.executable, "-c", code]
    env = {
        "SOCKD_STATE_DIR": str(daemon.state),
        "PYTHONPATH": str(REPO),
        "HOME": "/nonexistent",
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert "secret" not in done.stdout + done.stderr


def test_a_namespace_keeps_functions_of_two_projects_apart(daemon: RunningDaemon, project: Path) -> None:
    code = (
        "import functools\nimport sockd\nfunction = functools.partial(sockd.function, namespace={0!r})\n"
        "@function\ndef same(x): return [{0!r}, x]\n@function(name='named', memory_mb=64)\ndef other(x): return x\n"
        "if __name__ == '__main__': print(same.remote(1), same.name, other.remote(2), other.name)\n"
    )
    for name in ("shop", "bank"):
        (project / name).mkdir()
        (project / name / "apps.py").write_text(code.format(name))
        done = run(daemon, "apps.py", cwd=project / name)
        assert done.stdout == f"['{name}', 1] {name}-same 2 {name}-named\n", done.stderr
    assert daemon.call("bank-same", {"x": 3}) == ["bank", 3] and daemon.call("shop-same", {"x": 3}) == ["shop", 3]
