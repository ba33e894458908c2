"""A trial: a start of a function without a request, in a handler server as in a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.protocol import READY
from tests.zygote.handler_process import Server

TRIAL = "sockd_zygote.top_levels.trial:answer"
MAX_BYTES = 1 << 22
PLAIN = "import colorsys\nVALUE = 1\ndef handler(event): raise SystemExit('it was called')\n"
BESIDES = {"(interpreter)", "(checks)", "(top level)"}
SEES = "import sys\nprint('SEEN', *sorted(sys.modules))\n"


def trial(server: Server, source: str, *, app: str = "", env: dict[str, str] | None = None, **asked: Any) -> Any:
    """What a trial of f.py answers."""
    server.init(source, handler=TRIAL, max_answer_bytes=MAX_BYTES, env=env or {})
    event = {
        "function": {"handler": "f:handler", "code": str(server.code), "entry_file": "", "app": app, "wasm": ""},
        "roots": [],
        "record": True,
        "names_of": [],
        "pids": [],
        "moved": 0,
        "variables": [],
        **asked,
    }
    server.invoke(4, event)
    received(server)
    return server.answer(4)


def received(server: Server) -> None:
    """Take what comes before the first answer: the function is ready."""
    assert (frame := server.receive()) is not None and frame[0] == READY, frame


def seen(printed: bytes) -> set[str]:
    """Modules that f.py has found when it was imported."""
    (line,) = [line for line in printed.decode().splitlines() if line.startswith("SEEN ")]
    return set(line.split()[1:])


def test_it_tells_steps_digests_and_no_failure(server: Server) -> None:
    reported = trial(server, PLAIN)
    assert [(step["name"], step["key"]) for step in reported["steps"] if step["name"] != "f"] == [("colorsys", "")]
    assert {"f", "colorsys"} | BESIDES <= reported["digests"].keys() and reported["failure"] == ""
    assert reported["names"] == {} and reported["complete"] and reported["cpu_s"] > 0


def test_no_handler_is_called_and_the_process_goes_on(server: Server) -> None:
    trial(server, PLAIN)
    server.hang_up()
    status, printed = server.end()
    assert status == 0 and b"it was called" not in printed


def test_tracing_of_allocations_is_reported_and_ends_before_the_fingerprint(server: Server) -> None:
    tracing = "import _tracemalloc, os\n_tracemalloc.start(5)\nstop = _tracemalloc.stop\n"
    seen = "_tracemalloc.stop = lambda: (stop(), os.write(1, b'STOPPED'))\n"
    reported = trial(server, f"{tracing}{seen}{PLAIN}", names_of=["(interpreter)"])
    assert reported["names"]["(interpreter)"]["tracemalloc"][1] == "True"
    server.hang_up()
    assert b"STOPPED" in server.end()[1].partition(b"fingerprint")[0]


def test_nothing_is_recorded_unless_that_is_asked_for(server: Server) -> None:
    assert trial(server, PLAIN, record=False)["steps"] == []


def test_nothing_that_the_trial_imports_is_visible_to_the_top_level(server: Server, tmp_path: Path) -> None:
    trial(server, f"{SEES}{PLAIN}")
    in_trial = seen(server.end()[1])
    (tmp_path / "own").mkdir()
    own = Server(tmp_path / "own", warm=server.warm)
    try:
        if own.warm:
            own.receive()
        own.init(f"{SEES}def handler(event): return 1\n")
        own.invoke(4)
        received(own)
        assert own.answer(4) == 1
        in_own = seen(own.end()[1])
    finally:
        own.close()
    assert {name for name in in_trial ^ in_own if not name.startswith("sockd_zygote.")} == set()


@pytest.mark.parametrize(
    ("source", "app", "loads"),
    [
        ("async def handler(event): return 1\n", "", "asyncio"),
        ("async def handler(scope, receive, send): pass\n", "auto", "asyncio"),
        ("async def handler(scope, receive, send): pass\n", "asgi", "asyncio"),
        ("def handler(environ, start_response): return []\n", "maybe", "urllib.parse"),
        ("def handler(environ, start_response): return []\n", "wsgi", "urllib.parse"),
    ],
)
def test_what_serves_its_kind_of_handler_is_imported_too(server: Server, source: str, app: str, loads: str) -> None:
    reported = trial(server, f"{SEES}{source}", app=app)
    assert reported["failure"] == "" and loads in reported["digests"]
    assert loads not in seen(server.end()[1]), "and not before the top level has run"


def test_an_event_handler_loads_none_of_that(server: Server) -> None:
    reported = trial(server, "def handler(event): return 1\n", app="maybe")
    assert "asyncio" not in reported["digests"] and "inspect" not in reported["digests"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import absent_one", "ModuleNotFoundError"),
        ("del handler", "HandlerNotFound"),
        ("def handler(a, b, c): pass", "HandlerNotFound"),
    ],
)
def test_a_failure_is_reported_by_its_type(server: Server, code: str, failure: str) -> None:
    reported = trial(server, f"{PLAIN}{code}\n")
    assert reported["failure"] == failure
    assert "colorsys" in [step["name"] for step in reported["steps"]]
    assert not any("x" in str(each) for each in reported["names"].values())


def test_names_of_modules_are_reported_if_they_are_asked_for(server: Server) -> None:
    first = trial(server, PLAIN)
    assert first["names"] == {}
    again = Server(server.code, warm=False)
    try:
        reported = trial(again, PLAIN.replace("1", "2"), names_of=["f", "colorsys", "absent"])
    finally:
        again.close()
    assert {"f", "colorsys"} <= reported["names"].keys() and "absent" not in reported["names"]
    assert reported["names"]["f"]["VALUE"][1] == "an int", "a value of the function's own code is not told"
    assert reported["names"]["colorsys"]["ONE_THIRD"][1] == str(1 / 3)
    assert reported["owners"]["colorsys"] == "" and "f" not in reported["owners"]


def test_a_value_that_may_be_a_variables_is_not_reported(server: Server) -> None:
    source = "import colorsys, os\ncolorsys.KEPT = os.environ['TOKEN']\ncolorsys.PART = 'hun'\ndef handler(e): pass\n"
    reported = trial(server, source, env={"TOKEN": "hunter2"}, variables=["TOKEN"], names_of=["colorsys"])
    names = reported["names"]["colorsys"]
    assert names["KEPT"][1] == "$TOKEN" and names["PART"][1] == "a str"
    assert names["rgb_to_hls"][2].keys() == {"its code"}


def test_what_code_leaves_in_the_interpreter_is_reported(server: Server) -> None:
    reported = trial(
        server, f"import sys\nsys.setrecursionlimit(4321)\n{PLAIN}", names_of=["(interpreter)", "(checks)"]
    )
    assert reported["names"]["(interpreter)"]["sys.getrecursionlimit()"][1] == "4321"
    assert {name: words for name, (_, words, _) in reported["names"]["(checks)"].items()} == {
        **dict.fromkeys(("a thread", "fork", "ssl", "a socket"), "'works'"),
        "numpy.dot": "'is not there'",
    }


def test_two_trials_of_one_function_agree(server: Server) -> None:
    source = "import decimal, email.message, threading\nSET = {str, int, repr}\ndef handler(event): pass\n"
    interpreter: dict[str, Any] = {"names_of": ["(interpreter)"]}
    first = trial(server, source, **interpreter)
    again = Server(server.code, warm=server.warm)
    try:
        if again.warm:
            again.receive()
        second = trial(again, source, moved=1, record=False, **interpreter)
    finally:
        again.close()
    assert {name for name in first["digests"] if first["digests"][name] != second["digests"][name]} <= {"(interpreter)"}
    settings, others = first["names"]["(interpreter)"], second["names"]["(interpreter)"]
    ours = {"files in /tmp", "os.environ", "sys.argv"}  # of this process, which is in no sandbox
    assert {name for name in settings if settings[name] != others[name]} <= ours
