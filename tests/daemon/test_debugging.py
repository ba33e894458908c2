"""`sockd invoke --debug` on a real daemon: an invocation that waits for a debugger, and who may be that.

With debugpy from uv's own index where one can be reached, and a stand-in for it where it is about the rest.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.gate import Gate
from tests.daemon.kernel_view import wait_readable
from tests.daemon.running import REPO, RunningDaemon
from tests.support import sockd_template
from tests.support.dap import Debugger
from tests.support.servers.package_index import PackageIndex, wheel

STAND_IN = """
import signal, socket

def configure(**settings):
    assert settings == {"subProcess": False}

def connect(address):
    global connection
    connection = socket.create_connection(address)

def wait_for_client():
    while (word := connection.recv(100)) != b"go":  # debugpy waits for ever when its debugger has left
        signal.pause() if not word else connection.sendall(word.upper())
"""
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def config(index: PackageIndex) -> str:
    index.add(wheel("stand-in", "1.0", {"debugpy.py": STAND_IN}))
    return '[debug]\nrequirement = "stand-in==1.0"\n[zygote]\nspares = 1\n'


@pytest.fixture(autouse=True)
def empty(daemon: RunningDaemon) -> None:
    """No function of an earlier test is there."""
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])


class Session:
    """A `sockd invoke --debug` under way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def launch_configuration(self) -> dict[str, Any]:
        """What the command says to tell the debugger: the JSON at the end of what it says until it waits."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line == "}\n":
                break
        text = "".join(self.said)
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        return found

    def port(self) -> int:
        return int(self.launch_configuration()["connect"]["port"])

    def end(self) -> tuple[int, str, str]:
        """Exit status, what it printed, what it said."""
        stdout, stderr = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, stdout, "".join(self.said) + stderr


@contextmanager
def debugging(daemon: RunningDaemon, name: str, *more: str, event: object = None) -> Iterator[Session]:
    command = [sys.executable, "-m", "sockd", "invoke", name, "-d", json.dumps(event), "--state-dir", str(daemon.state)]
    process = sockd_template.start(
        [*command, "--debug", "0", *more], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Session(process)
    finally:
        process.kill()
        process.communicate()


def attached(port: int, *words: bytes, host: str = "127.0.0.1") -> socket.socket:
    """A debugger for the stand-in: says each of the words."""
    connection = socket.create_connection((host, port), DEADLINE_S)
    for word in words:
        connection.sendall(word)
    return connection


def let_in(port: int) -> socket.socket:
    """Connect a debugger that is accepted, as soon as the end of the connection before was noticed."""
    while True:
        connection = attached(port, b"a")
        with suppress(ConnectionError):
            if connection.recv(1) == b"A":
                return connection
        connection.close()


def asked(daemon: RunningDaemon, name: str, query: str = "") -> dict[str, Any]:
    """The last line of the management API's answer."""
    line: dict[str, Any] = json.loads(
        daemon.manage("POST", f"/functions/{name}/debug{query}", "{}").body.splitlines()[-1]
    )
    result: dict[str, Any] = line["result"]
    return result


def error_of(answer: dict[str, Any]) -> tuple[int, str, str]:
    error = json.loads(base64.b64decode(answer["body"]))
    return answer["status"], error["errorType"], error["errorMessage"]


# -- with debugpy itself

HANDLER = """
import subprocess, sys, threading
answers = []

def add(event):
    total = event["a"] + event["b"]
    answers.append(total)

def f(event):
    thread = threading.Thread(target=add, args=[event])
    thread.start()
    thread.join()
    inner = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
    return [*answers, inner.stdout.strip()]
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("network", ["host", "none"])
def test_an_editor_attaches_stops_at_a_breakpoint_reads_a_variable_and_goes_on(
    real: RunningDaemon, tmp_path: Path, network: str
) -> None:
    real.deploy("calc", HANDLER, network=network)
    with debugging(real, "calc", "--source", str(tmp_path), event={"a": 1, "b": 2}) as session:
        try:
            launch = session.launch_configuration()
        except ValueError:
            if "did not answer" in "".join(session.said):
                pytest.skip(f"no package index can be reached: {session.said}")
            raise
        (mapping,) = launch["pathMappings"]
        assert (launch["type"], launch["request"]) == ("debugpy", "attach")
        assert mapping == {"localRoot": str(tmp_path), "remoteRoot": "/var/task"}
        debugger = Debugger(launch["connect"]["port"])
        debugger.initialize(mapping["localRoot"], mapping["remoteRoot"])
        source = {"path": f"{tmp_path}/f.py"}
        lines = [3, 7, 14]  # of the module, in a thread, in the handler
        found = debugger.ask("setBreakpoints", source=source, breakpoints=[{"line": line} for line in lines])
        assert all(each["verified"] for each in found["breakpoints"])
        debugger.ask("configurationDone")
        for name, number in zip(("<module>", "add", "f"), lines, strict=True):
            thread = debugger.event("stopped")["threadId"]
            (frame, *_) = debugger.ask("stackTrace", threadId=thread)["stackFrames"]
            assert (frame["name"], frame["line"], frame["source"]["path"]) == (name, number, source["path"])
            if name == "add":
                (scope, *_) = debugger.ask("scopes", frameId=frame["id"])["scopes"]
                place = {"variablesReference": scope["variablesReference"]}
                variables = debugger.ask("variables", **place)["variables"]
                assert {each["name"]: each["value"] for each in variables} == {
                    "event": "{'a': 1, 'b': 2}",
                    "total": "3",
                }
                debugger.ask("setVariable", **place, name="total", value="40")
            # Unanswered the last time, if the request is at its end before debugpy has said that it goes on.
            (debugger.send if name == "f" else debugger.ask)("continue", threadId=thread)
        assert session.end()[:2] == (0, '[40,"42"]\n')
        while debugger.read() is not None:
            continue
        debugger.close()
    assert real.logs("calc") == []
    real.remove("calc")
    assert real.status()["sandboxes"]["idle"] == 0


# -- with the stand-in


@pytest.mark.parametrize("network", ["host", "none"])
def test_the_handler_is_imported_once_the_debugger_is_ready_and_the_command_answers(
    daemon: RunningDaemon, network: str
) -> None:
    daemon.deploy("hello", "print('imported')\ndef f(event): return event", network=network)
    with debugging(daemon, "hello", event=[1]) as session, attached(session.port(), b"hey") as debugger:
        assert debugger.recv(100) == b"HEY"
        debugger.sendall(b"go")
        status, printed, said = session.end()
        assert (status, printed) == (0, "[1]\n")
        assert "installing stand-in 1.0" in said or network != "host", "it is installed once"
        assert debugger.recv(100) == b""  # the sandbox is gone, and its debugger sees the end
    (*_, record) = daemon.logs("hello")
    assert record["text"] == "imported\n"
    sandboxes = daemon.status()["sandboxes"]
    assert sandboxes["idle"] == sandboxes["paused"] == 0
    assert b'faas_invocations_total{faas_name="hello"' not in daemon.request("GET", "/metrics").body
    assert daemon.call("hello", 2) == 2


def test_a_handler_that_raises_is_reported_as_ever(daemon: RunningDaemon) -> None:
    daemon.deploy("raises", "def f(event): raise KeyError('x')")
    with debugging(daemon, "raises") as session, attached(session.port(), b"go"):
        status, _, said = session.end()
        assert status == 1 and "KeyError: 'x'" in said and "in f\n" in said


def test_deadlines_do_not_hold_but_the_workers_own(daemon: RunningDaemon, gate: Gate) -> None:
    code = f"from gate import wait\nwait({gate.port})\ndef f(event, context): return context.get_remaining_time_in_millis()"
    settings = {"timeout_s": 0.5, "init_timeout_s": 0.5}
    daemon.deploy("slow", {"f.py": code, "gate.py": gate.CODE}, **settings)
    with debugging(daemon, "slow") as session, attached(session.port(), b"go"):
        gate.arrived()
        assert not wait_readable(session.process.stdout.fileno(), 1.0)  # type: ignore[union-attr]
        gate.open()
        status, printed, _ = session.end()
    assert status == 0 and 3_500_000 < int(printed) <= 3_600_000


def test_ctrl_c_ends_the_sandbox(daemon: RunningDaemon, gate: Gate) -> None:
    code = f"from gate import wait\ndef f(event): return wait({gate.port})"
    daemon.deploy("held", {"f.py": code, "gate.py": gate.CODE}, concurrency=1, timeout_s=10)
    with debugging(daemon, "held") as session, attached(session.port(), b"go"):
        gate.arrived()
        session.process.send_signal(signal.SIGINT)
        assert gate.gone() and session.end()[0] != 0
    daemon.deploy("free", "def f(event): return 1", concurrency=1)
    with debugging(daemon, "free") as session:
        session.port()
        session.process.send_signal(signal.SIGINT)
        assert session.end()[0] != 0
        assert daemon.call("free") == 1  # it waited for the place, and has it


@pytest.mark.parametrize("network", ["host", "none"])
def test_a_debugger_that_leaves_before_the_handler_is_there_ends_it(daemon: RunningDaemon, network: str) -> None:
    daemon.deploy("early", "def f(event): return 1", network=network)
    with debugging(daemon, "early") as session:
        with attached(session.port(), b"hey") as debugger:
            assert debugger.recv(100) == b"HEY"
        status, _, said = session.end()
        assert status == 1 and "Debug.Refused: the debugger left" in said


def test_a_debugger_that_leaves_later_does_not_end_it(daemon: RunningDaemon, gate: Gate) -> None:
    code = f"from gate import wait\ndef f(event): return wait({gate.port})"
    daemon.deploy("late", {"f.py": code, "gate.py": gate.CODE}, timeout_s=10)
    with debugging(daemon, "late") as session:
        with attached(session.port(), b"go"):
            gate.arrived()
        gate.open("on its own")
        assert session.end()[:2] == (0, '"on its own"\n')


def test_a_look_at_the_port_is_no_debugger_and_there_is_only_one(daemon: RunningDaemon) -> None:
    daemon.deploy("one", "def f(event): return 1")
    with debugging(daemon, "one") as session:
        port = session.port()
        attached(port).close()
        first = let_in(port)
        second = attached(port)
        assert second.recv(1) == b""
        first.sendall(b"go")
        assert session.end()[:2] == (0, "1\n")
        first.close()
        second.close()


def test_no_function_can_be_the_debugger_of_another(daemon: RunningDaemon) -> None:
    daemon.deploy("debugged", "def f(event): return 'mine'")
    daemon.deploy(
        "stranger",
        "import socket\n"
        "def f(port):\n"
        "    with socket.create_connection(('127.0.0.1', port)) as s:\n"
        "        try:\n"
        "            s.sendall(b'go')\n"
        "            return len(s.recv(100))\n"
        "        except ConnectionError:\n"
        "            return 0\n",
    )
    with debugging(daemon, "debugged") as session:
        port = session.port()
        assert daemon.call("stranger", port) == 0
        with attached(port, b"hey") as debugger:
            assert debugger.recv(100) == b"HEY"  # it still waits
            debugger.sendall(b"go")
            assert session.end()[:2] == (0, '"mine"\n')


def test_the_port_is_on_both_loopbacks_and_no_function_has_it_elsewhere(daemon: RunningDaemon) -> None:
    """An editor that connects to `localhost` may try ::1 first, and a server there would run its expressions, or read
    them."""
    daemon.deploy("debugged", "def f(event): return 'mine'")
    daemon.deploy(
        "squatter",
        "import errno, socket\n"
        "def f(event):\n"
        "    family = socket.AF_INET6 if ':' in event[0] else socket.AF_INET\n"
        "    with socket.socket(family) as s:\n"
        "        try:\n"
        "            s.bind(tuple(event))\n"
        "        except OSError as error:\n"
        "            return errno.errorcode[error.errno]\n",
    )
    with debugging(daemon, "debugged") as session:
        port = session.port()
        assert daemon.call("squatter", ["::", port]) == daemon.call("squatter", ["127.0.0.2", port]) == "EPERM"
        with attached(port, b"hey", host="::1" if socket.has_ipv6 else "127.0.0.1") as debugger:
            assert debugger.recv(100) == b"HEY"
            debugger.sendall(b"go")
            assert session.end()[:2] == (0, '"mine"\n')
    assert daemon.call("squatter", ["127.0.0.2", port]) is None


def test_a_program_cannot_be_debugged(daemon: RunningDaemon) -> None:
    files = {"f.py": "def f(event): return 1", "bootstrap": "#!/bin/sh\n"}
    daemon.deploy("odd", files, runtime="provided", handler="f.f")
    status, kind, message = error_of(asked(daemon, "odd"))
    assert (status, kind) == (400, "Debug.Refused") and "not a Python handler" in message


def test_a_port_that_is_taken_is_reported(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("hello", "def f(event): return 1")
    status, kind, message = error_of(asked(daemon, "hello", f"?port={gate.port}"))
    assert (status, kind) == (400, "Debug.Refused") and "in use" in message
    for port in ("-1", "65536", "x"):
        assert daemon.manage("POST", f"/functions/hello/debug?port={port}", "{}").status == 400
    assert error_of(asked(daemon, "nobody"))[0] == 404


def test_only_the_management_socket_has_it(daemon: RunningDaemon) -> None:
    daemon.deploy("hello", "def f(event): return 1")
    for path in ("/functions/hello/debug", "/functions/hello/debug?port=0"):
        assert daemon.request("POST", path, "{}").status in (404, 405)
    command = [sys.executable, "-m", "sockd", "invoke", "hello", "--debug", "--url", daemon.url]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "management socket" in done.stderr
    wrong = subprocess.run([*command[:4], "--debug", "hello"], cwd=REPO, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "sockd invoke NAME --debug" in wrong.stderr


def test_its_package_is_in_use_while_it_lasts_and_in_no_other_sandbox(daemon: RunningDaemon) -> None:
    daemon.deploy("looks", "import sys\ndef f(event): return [p for p in sys.path if 'stand-in' in p]")
    with debugging(daemon, "looks") as session:
        port = session.port()
        (key,) = [row["key"] for row in daemon.packages().values() if row["name"] == "stand-in"]
        refused = daemon.manage("DELETE", f"/packages/{key}")
        assert refused.status == 400 and "looks" in refused.json["errorMessage"]
        with attached(port, b"go"):
            assert session.end()[1] == f'["/packages/{key}"]\n'
    assert daemon.call("looks") == []
    assert daemon.manage("DELETE", f"/packages/{key}").status == 200
    with debugging(daemon, "looks") as session, attached(session.port(), b"go"):
        assert session.end()[0] == 0  # installed again


def test_a_functions_own_debugger_wins(daemon: RunningDaemon, index: PackageIndex) -> None:
    own = STAND_IN.replace('b"go"', 'b"run"')
    index.add(wheel("stand-in", "2.0", {"debugpy.py": own}))
    daemon.deploy("own", {"f.py": "def f(event): return 1", "requirements.txt": "stand-in==2.0"})
    with debugging(daemon, "own") as session, attached(session.port(), b"run"):
        assert session.end()[:2] == (0, "1\n")


def test_it_takes_a_place_among_the_functions_requests(daemon: RunningDaemon) -> None:
    daemon.deploy("single", "def f(event): return 1", concurrency=1, queue_depth=0)
    with debugging(daemon, "single") as session:
        port = session.port()
        assert daemon.run("single").status == 429
        with attached(port, b"go"):
            assert session.end()[:2] == (0, "1\n")
    assert daemon.call("single") == 1


def lone(tmp_path: Path, index: PackageIndex, debug: str) -> RunningDaemon:
    text = f'[packages]\nindex_url = "{index.url}"\n[debug]\n{debug}\n'
    return RunningDaemon.start(tmp_path / "state", text)


def test_a_debugger_that_cannot_be_had_is_reported(tmp_path: Path, index: PackageIndex) -> None:
    daemon = lone(tmp_path, index, 'requirement = "no-such-debugger==1"')
    try:
        daemon.deploy("hello", "def f(event): return 1")
        status, kind, message = error_of(asked(daemon, "hello"))
        assert (status, kind) == (400, "Packages.ResolveFailed")
        assert "the debugger, no-such-debugger==1 (debug.requirement), cannot be had" in message
    finally:
        daemon.close()


def test_it_ends_at_the_configured_limit_and_when_the_worker_is_to_stop(tmp_path: Path, index: PackageIndex) -> None:
    daemon = lone(tmp_path, index, 'requirement = "stand-in==1.0"\nmax_s = 1.5')
    try:
        daemon.deploy("hello", "def f(event): return 1")
        with debugging(daemon, "hello") as session:
            session.port()
            status, _, said = session.end()
            assert status == 5 and "longer than 1.5 seconds: debug.max_s" in said
        assert daemon.terminate() == 0
    finally:
        daemon.close()


def test_a_worker_that_is_to_stop_does_not_wait_for_a_debugger(
    daemon: RunningDaemon, tmp_path: Path, index: PackageIndex
) -> None:
    other = lone(tmp_path, index, 'requirement = "stand-in==1.0"')
    try:
        other.deploy("hello", "def f(event): return 1")
        with debugging(other, "hello") as session:
            session.port()
            assert other.terminate(10) == 0
            assert "shutting down" in session.end()[2]
    finally:
        other.close()
