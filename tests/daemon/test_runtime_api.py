"""Functions that are programs behind AWS's Runtime API: a bootstrap of their own, AWS's client, and who else may listen."""

from __future__ import annotations

import io
import stat
import zipfile

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.snapshots.snapshotted import command_line
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

BOOTSTRAP = """#!/usr/bin/python3
import base64, http.client, json, os, signal, sys, time
host = os.environ["AWS_LAMBDA_RUNTIME_API"]
base = "/2018-06-01/runtime/"
if os.environ.get("INIT") == "error":
    connection = http.client.HTTPConnection(host)
    error = {"errorType": "Bad.Init", "errorMessage": "no luck", "stackTrace": ["here"]}
    connection.request("POST", base + "init/error", json.dumps(error))
    assert connection.getresponse().status == 202
if os.environ.get("INIT"):
    sys.exit(7)
connection = http.client.HTTPConnection(host)
def ask(method, path, body=None, headers={}):
    connection.request(method, base + path, body, headers)
    response = connection.getresponse()
    return response, response.read()
while True:
    response, event = ask("GET", "invocation/next")
    event, reported = json.loads(event), dict(response.getheaders())
    this = "invocation/" + reported["Lambda-Runtime-Aws-Request-Id"]
    what = event.get("what")
    print("working on", what, flush=True)
    if what == "raise":
        error = {"errorType": "ValueError", "errorMessage": "not this", "stackTrace": ["  File x, line 1\\n"]}
        ask("POST", this + "/error", json.dumps(error), {"Lambda-Runtime-Function-Error-Type": "ValueError"})
    elif what == "panic":
        error = {"errorType": "runtime.Panic", "errorMessage": "oh no", "stackTrace": []}
        ask("POST", this + "/error", json.dumps(error))
        time.sleep(event["after"])
        print("panicked", file=sys.stderr, flush=True)
        os._exit(2)
    elif what == "answer and end":
        ask("POST", this + "/response", json.dumps("answered"))
        time.sleep(event["after"])
        print("ended behind its answer", file=sys.stderr, flush=True)
        os._exit(4)
    elif what == "rubbish":
        ask("POST", this + "/error", b"\\xff no json")
    elif what == "chunks":
        ask("POST", this + "/response", iter([b'"in ', b'pieces"']))
    elif what == "breaks":
        error = {"errorType": "Inner", "errorMessage": "lost the thread", "stackTrace": ["  File x, line 2\\n"]}
        reported = base64.b64encode(json.dumps(error).encode()).decode()
        connection.putrequest("POST", base + this + "/response")
        for name, value in (("Transfer-Encoding", "chunked"), ("Lambda-Runtime-Function-Response-Mode", "streaming"),
                            ("Trailer", "Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body")):
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(b'5\\r\\n"half\\r\\n0\\r\\nLambda-Runtime-Function-Error-Type: Own.Broke\\r\\n'
                        b"Lambda-Runtime-Function-Error-Body: " + reported.encode() + b"\\r\\n\\r\\n")
        connection.getresponse().read()
    elif what == "exit":
        os._exit(3)
    elif what == "wait":
        signal.pause()
    elif what == "wrong":
        statuses = [ask("POST", path, b"1")[0].status for path in
                    ("invocation/0000/response", "nothing", this + "/nothing")]
        ask("POST", this + "/response", json.dumps(statuses))
        again = ask("POST", this + "/response", b'"twice"')[0].status
        print("again", again, flush=True)
    else:
        left = int(reported["Lambda-Runtime-Deadline-Ms"]) - time.time() * 1000
        fds = sorted(os.listdir("/proc/self/fd"))
        answer = {"event": event, "arn": reported["Lambda-Runtime-Invoked-Function-Arn"], "left": left,
                  "id": reported["Lambda-Runtime-Aws-Request-Id"], "cwd": os.getcwd(), "fds": fds, "port": host}
        ask("POST", this + "/response", json.dumps(answer))
"""
THIEF = """
import http.client
def f(event):
    host, port = event["api"].split(":")
    got = []
    for method, path in (("GET", "invocation/next"), ("POST", "init/error"), ("POST", "invocation/x/response")):
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request(method, "/2018-06-01/runtime/" + path, None if method == "GET" else b"{}")
            got.append(connection.getresponse().status)
        except (ConnectionError, http.client.HTTPException):
            got.append("refused")
        finally:
            connection.close()
    return got
"""


@pytest.fixture(scope="module")
def config() -> str:
    """No sandbox is frozen in these tests: a frozen program notices no request of another."""
    return "[sandbox]\npause_after_s = 60\n"


def archive(bootstrap: str | bytes = BOOTSTRAP, program: str = "bootstrap", **files: str) -> bytes:
    """Args: program: the name of the file that is executable."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        entry = zipfile.ZipInfo(program)
        entry.external_attr = (stat.S_IFREG | 0o755) << 16
        made.writestr(entry, bootstrap)
        for name, text in files.items():
            made.writestr(name.replace("__", "."), text)
    return packed.getvalue()


@pytest.fixture
def program(daemon: RunningDaemon) -> str:
    daemon.deploy("program", archive(), timeout_s=10, memory_mb=128)
    return "program"


def test_a_program_answers_events_one_after_the_other(daemon: RunningDaemon, program: str) -> None:
    answers = [daemon.run(program, {"n": number}) for number in range(3)]
    assert [answer.json["event"] for answer in answers] == [{"n": 0}, {"n": 1}, {"n": 2}]
    first, last = answers[0], answers[-1]
    assert first.headers["x-sockd-cold"] == "1" and last.headers["x-sockd-cold"] == "0"
    assert first.json["id"] == first.headers["x-amzn-requestid"]
    assert first.json["arn"].endswith(":function:program") and first.json["cwd"] == "/var/task"
    assert 0 < first.json["left"] <= 10_000
    assert set(first.json["fds"]) <= {"0", "1", "2", "3", "4"}, "stdio, its own connection and this very listing"
    assert "working on None" in daemon.log_of(program, last)
    assert daemon.call(program, {"what": "chunks"}) == "in pieces"


def test_what_a_program_reports_is_an_error_of_the_function(daemon: RunningDaemon, program: str) -> None:
    failed = daemon.run(program, {"what": "raise"})
    assert failed.status == 500
    answered = {key: failed.json[key] for key in ("errorType", "errorMessage", "stackTrace")}
    assert answered == {"errorType": "ValueError", "errorMessage": "not this", "stackTrace": ["  File x, line 1\n"]}
    rubbish = daemon.run(program, {"what": "rubbish"}).json
    assert (rubbish["errorType"], rubbish["errorMessage"]) == ("Runtime.UnknownReason", "\ufffd no json")
    assert daemon.call(program, {"what": "wrong"}) == [400, 404, 404]
    assert daemon.call(program, {"n": 1})["event"] == {"n": 1}, "and it goes on"


@pytest.mark.parametrize("after", [0, 0.1, 1.2])
@pytest.mark.parametrize(("what", "answer"), [("panic", "runtime.Panic"), ("answer and end", "answered")])
def test_a_program_that_ends_behind_its_answer_fails_no_other_request(
    daemon: RunningDaemon, program: str, what: str, answer: str, after: float
) -> None:
    """As Go's runtime client does after a panic: 1.2 s are longer than an error waits for the next GET."""
    for number in range(3):
        ended = daemon.run(program, {"what": what, "after": after})
        assert (ended.status, ended.json if ended.status == 200 else ended.json["errorType"]) == (
            200 if answer == "answered" else 500,
            answer,
        )
        innocent = daemon.run(program, {"n": number})
        assert (innocent.status, innocent.headers["x-sockd-cold"]) == (200, "1"), innocent
        assert innocent.json["event"] == {"n": number}
        if (what, after) == ("answer and end", 0.1):
            assert "ended behind its answer" in daemon.log_of(program, innocent), (
                "what the first sandbox printed is kept"
            )


def test_a_sandbox_whose_program_has_panicked_is_not_kept(daemon: RunningDaemon) -> None:
    daemon.deploy("panics", archive(), timeout_s=10)
    daemon.run("panics", {"what": "panic", "after": 0.1})
    daemon.when(lambda: not any("panics" in command_line(pid) for pid in daemon.pids()))


def test_an_answer_that_fails_in_the_middle_is_an_error_of_the_function(daemon: RunningDaemon, program: str) -> None:
    answer = daemon.run(program, {"what": "breaks"})
    assert (answer.status, answer.json["errorType"]) == (500, "Own.Broke")
    assert (answer.json["errorMessage"], answer.json["stackTrace"]) == ("lost the thread", ["  File x, line 2\n"])
    assert "[ERROR] Own.Broke: lost the thread" in daemon.log_of(program, answer)
    assert daemon.run(program, {"what": "chunks"}).json == "in pieces", "and goes on"


def test_a_program_that_ends_or_hangs_ends_its_sandbox(daemon: RunningDaemon, program: str) -> None:
    ended = daemon.run(program, {"what": "exit"})
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError") and "3" in ended.json["errorMessage"]
    daemon.deploy("hangs", archive(), timeout_s=1)
    assert daemon.run("hangs", {"what": "wait"}).json["errorType"] == "Sandbox.Timedout"
    assert daemon.call(program, {})["event"] == {}


def test_a_start_that_fails_says_how(daemon: RunningDaemon) -> None:
    daemon.deploy("reports", archive(), env={"INIT": "error"})
    reported = daemon.run("reports", {}).json
    assert (reported["errorType"], reported["errorMessage"], reported["stackTrace"]) == (
        "Bad.Init",
        "no luck",
        ["here"],
    )
    daemon.deploy("ends", archive(), env={"INIT": "exit"})
    ended = daemon.run("ends", {})
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError") and "7" in ended.json["errorMessage"]
    daemon.deploy("nothing", archive("#!/does/not/exist\n"))
    nothing = daemon.run("nothing", {}).json
    assert nothing["errorType"] == "Runtime.InvalidEntrypoint" and not nothing["stackTrace"]
    assert nothing["errorMessage"] == "/var/task/bootstrap exists, but its interpreter /does/not/exist does not"


def test_another_function_can_neither_take_an_event_nor_answer_it(daemon: RunningDaemon, program: str) -> None:
    api = daemon.call(program, {})["port"]
    daemon.deploy("thief", THIEF, timeout_s=20)
    assert daemon.call("thief", {"api": api}) == ["refused"] * 3
    assert daemon.call(program, {"still": "mine"})["port"] == api, "the same sandbox has answered"


RIC = """
import http.client, importlib, json, os, sys
sys.path.insert(0, os.getcwd())
module, name = sys.argv[1].rsplit(".", 1)
handler = getattr(importlib.import_module(module), name)
while True:
    connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    connection.request("GET", "/2018-06-01/runtime/invocation/next")
    response = connection.getresponse()
    answer = json.dumps(handler(json.loads(response.read()), None))
    this = "/2018-06-01/runtime/invocation/" + response.getheader("Lambda-Runtime-Aws-Request-Id")
    connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    connection.request("POST", this + "/response", answer)
    connection.getresponse().read()
"""


def test_without_a_bootstrap_awss_client_runs_the_handler(daemon: RunningDaemon, index: PackageIndex) -> None:
    """A stand-in for awslambdaric, of the same name and called the same way: the index of the tests has no other."""
    index.add(wheel("awslambdaric", "1.0", {"awslambdaric/__init__.py": "", "awslambdaric/__main__.py": RIC}))
    files = {
        "app.py": "def handler(event, context): return ['ric', event]\n",
        "requirements.txt": "awslambdaric==1.0\n",
    }
    daemon.deploy("ric", files, runtime="provided", handler="app.handler")
    assert daemon.call("ric", 5) == ["ric", 5]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"runtime": "provided"}, "needs an executable file bootstrap"),
        ({"runtime": "ruby"}, "runtime: Invalid enum value"),
    ],
)
def test_what_cannot_run_is_refused(daemon: RunningDaemon, settings: dict[str, str], words: str) -> None:
    with pytest.raises(DeployFailed, match=words):
        daemon.deploy("refused", "def f(event): return 1", **settings)
