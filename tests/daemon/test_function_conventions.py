"""How functions may be written: which callable is found, what it is called with, what it finds around itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.running import Answer, DeployFailed, RunningDaemon


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("lambda_function.py", "def lambda_handler(event, context): return [event, context.function_name]"),
        ("handler.py", "def handler(event, context): return [event, context.function_name]"),
        ("main.py", "def handler(event, context=None): return [event, context.function_name]"),
        ("f.py", "def f(*arguments): return [arguments[0], arguments[1].function_name]"),
        ("f.py", "async def f(event, context): return [event, context.function_name]"),
        ("f.py", "class F:\n def __call__(self, event, context): return [event, context.function_name]\nf = F()"),
        ("f.py", "class F:\n async def __call__(self, e, c): return [e, c.function_name]\nf = F()"),
        ("f.py", "import functools\nf = functools.partial(lambda x, e, c: [e, c.function_name], 0)"),
    ],
)
def test_a_handler_of_two_parameters_gets_event_and_context(daemon: RunningDaemon, file: str, code: str) -> None:
    daemon.deploy("two", {file: code})
    assert daemon.call("two", {"n": 1}) == [{"n": 1}, "two"]


@pytest.mark.parametrize("file", ["main.py", "app.py", "f.py", "handler.py"])
def test_an_app_is_found_where_frameworks_have_it(daemon: RunningDaemon, file: str) -> None:
    code = "def app(environ, start_response):\n start_response('200 OK', [])\n return [environ['PATH_INFO'].encode()]\n"
    daemon.deploy("framework", {file: code}, check_handler=True)
    assert daemon.request("GET", "/run/framework/a/b").body == b"/a/b"


def test_an_app_is_found_in_the_file_that_openlambda_s_variable_names(daemon: RunningDaemon) -> None:
    code = "def app(environ, start_response):\n start_response('200 OK', [])\n return [environ['PATH_INFO'].encode()]\n"
    files = {"app.py": code, "ol.yaml": 'environment:\n  OL_ENTRY_FILE: "app.py"\n'}
    daemon.deploy("entry", files, check_handler=True)
    assert daemon.request("GET", "/run/entry/a?b=1").body == b"/a"


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({"handler.py": "def handler(event): return event"}, {}),
        ({"f.py": "def f(event): return event"}, {}),
        ({"f.py": "async def f(event): return event"}, {}),
        ({"f.py": "f = lambda event, *, extra=1: event"}, {}),
        (
            {
                "function/function.py": "from . import other\ndef handler(event): return other.same(event)",
                "function/other.py": "def same(x): return x",
            },
            {},
        ),
        (
            {"f.py": "def f(event): return 'wrong'", "deep/er/mod.py": "def go(e): return e"},
            {"handler": "deep.er.mod:go"},
        ),
        ({"mod.py": "def go(e): return e"}, {"handler": "mod.go"}),
        ({"mod.py": "def go(e): return e", "sockd.toml": 'handler = "mod.py:go"'}, {}),
        ({"mod.py": "def go(e): return e", "sockd.toml": 'handler = "no:such"'}, {"handler": "mod:go"}),
    ],
)
def test_a_handler_of_one_parameter_gets_the_event(
    daemon: RunningDaemon, files: dict[str, str], settings: dict[str, str]
) -> None:
    daemon.deploy("one", files, **settings)
    events: list[object] = [{"a": [1, None, "ü\U0001f600"]}, [], 0, "text", None, 1.5, True]
    for event in events:
        assert daemon.call("one", event) == event


def test_an_async_function_keeps_its_event_loop_between_requests(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "looped",
        "import asyncio\nloops = []\n"
        "async def f(event):\n"
        "    loops.append(asyncio.get_running_loop())\n"
        "    return [len(loops), len(set(map(id, loops)))]\n",
        concurrency=1,
    )
    assert [daemon.call("looped") for _ in range(3)] == [[1, 1], [2, 1], [3, 1]]


def test_the_context_is_the_one_that_aws_documents(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "context",
        {
            "lambda_function.py": """
def lambda_handler(event, context):
    return {
        "name": context.function_name, "version": context.function_version, "arn": context.invoked_function_arn,
        "memory": context.memory_limit_in_mb, "id": context.aws_request_id, "group": context.log_group_name,
        "stream": context.log_stream_name, "left": context.get_remaining_time_in_millis(),
        "identity": context.identity, "client": context.client_context,
    }
"""
        },
        memory_mb=200,
        timeout_s=70,
    )
    answer = daemon.run("context", {})
    reported = answer.json
    assert reported["name"] == "context" and reported["version"] == "$LATEST"
    assert reported["arn"].endswith(":function:context")
    assert reported["memory"] == "200"
    assert reported["id"] == answer.headers["x-amzn-requestid"]
    assert reported["group"] == "/aws/lambda/context" and reported["stream"]
    assert 50_000 < reported["left"] <= 70_000
    assert reported["identity"] is None and reported["client"] is None
    assert daemon.run("context", {}).json["id"] != reported["id"]


def test_the_environment_is_aws_s_and_the_function_s_own_and_nothing_of_the_host(daemon: RunningDaemon) -> None:
    daemon.deploy("env", "import os\ndef f(event): return dict(os.environ)", env={"GREETING": "hellö", "EMPTY": ""})
    env = daemon.call("env")
    assert env["GREETING"] == "hellö" and env["EMPTY"] == ""
    assert env["AWS_LAMBDA_FUNCTION_NAME"] == "env" and env["_HANDLER"] == "f.f"
    assert env["LAMBDA_TASK_ROOT"] == "/var/task" and env["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "128"
    assert env["PATH"].startswith("/usr/local/bin") and env["HOME"] == "/tmp"
    assert not {"SUDO_USER", "PYTHONPATH", "PWD_OLD", "PYTEST_CURRENT_TEST"} & set(env)


def test_standard_streams_are_pipes_whose_encoding_a_handler_may_change(daemon: RunningDaemon) -> None:
    code = """
import sys
def f(event):
    print("é", end="")
    sys.stdout.reconfigure(encoding=event)
    print("é", end="", flush=True)
    return [sys.stdout.seekable(), sys.stderr.seekable()]
"""
    daemon.deploy("streams", code)
    answer = daemon.run("streams", "latin-1")
    assert (answer.status, answer.json) == (200, [False, False])
    assert daemon.log_of("streams", answer) == r"é\xe9", "the log is UTF-8, and this byte alone is not"


def test_one_function_s_environment_is_in_no_other(daemon: RunningDaemon) -> None:
    read = "import os\ndef f(event): return os.environ.get('SECRET')"
    daemon.deploy("keeps", read, env={"SECRET": "hush"})
    daemon.deploy("asks", read)
    assert daemon.call("keeps") == "hush"
    assert [daemon.call("asks") for _ in range(3)] == [None] * 3


def test_a_function_works_where_its_code_is_and_can_write_to_tmp_only(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "places",
        {
            "f.py": """
import os, tempfile
def attempt(path):
    try:
        open(path, "w").close()
        return "written"
    except OSError as error:
        return error.strerror
def f(event):
    with tempfile.NamedTemporaryFile() as file:
        own = os.path.dirname(file.name)
    return [os.getcwd(), open("data.txt").read(), own, *map(attempt, ["/tmp/x", "/var/task/x", "/packages/x", "/usr/x", "/x"])]
""",
            "data.txt": "beside the code",
        },
    )
    cwd, data, own, tmp, *others = daemon.call("places")
    assert (cwd, data, own, tmp) == ("/var/task", "beside the code", "/tmp", "written")
    assert others == ["Read-only file system"] * 4


def test_what_functions_print_and_do_with_processes_threads_and_ssl_works(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "busy",
        """
import concurrent.futures, multiprocessing, ssl, subprocess, threading, socket
def square(x): return x * x
def f(event):
    seen = []
    thread = threading.Thread(target=seen.append, args=(1,)); thread.start(); thread.join()
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, [1, 2, 3])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        threaded = list(pool.map(square, [4]))
    out = subprocess.run(["/bin/echo", "hi"], capture_output=True, text=True, check=True).stdout
    return [seen, squares, threaded, out, len(ssl.create_default_context().get_ca_certs()) > 10, socket.gethostname()]
""",
        timeout_s=20,
        memory_mb=256,
    )
    assert daemon.call("busy") == [[1], [1, 4, 9], [16], "hi\n", True, "sandbox"]


def error_of(answer: Answer) -> dict[str, Any]:
    error = answer.json
    assert set(error) <= {"errorType", "errorMessage", "requestId", "stackTrace"}
    assert error["requestId"] == answer.headers["x-amzn-requestid"]
    return dict(error)


def test_an_exception_is_reported_as_aws_tells_it_with_the_user_s_frames_only(daemon: RunningDaemon) -> None:
    code = "def inner(x):\n    return x['missing']\n\ndef f(event):\n    return inner(event)\n"
    daemon.deploy("raises", code)
    answer = daemon.run("raises", {})
    error = error_of(answer)
    assert answer.status == 500
    assert (error["errorType"], error["errorMessage"]) == ("KeyError", "'missing'")
    assert error["stackTrace"] == [
        '  File "/var/task/f.py", line 5, in f\n    return inner(event)\n',
        "  File \"/var/task/f.py\", line 2, in inner\n    return x['missing']\n",
    ] or [line.splitlines()[0] for line in error["stackTrace"]] == [  # 3.13 underlines
        '  File "/var/task/f.py", line 5, in f',
        '  File "/var/task/f.py", line 2, in inner',
    ]
    assert daemon.run("raises", {"missing": 1}).json == 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("def f(event): return object()", "Runtime.MarshalError", "Unable to marshal response"),
        ("def f(event): return {1, 2}", "Runtime.MarshalError", "not JSON serializable"),
        ("def f(event): return [b'\\xff']", "Runtime.MarshalError", "Unable to marshal response"),
        ("def f(event): return {(1, 2): 3}", "Runtime.MarshalError", "Unable to marshal response"),
        ("x = []\nx.append(x)\ndef f(event): return x", "Runtime.MarshalError", "Unable to marshal response"),
        ("class Mine(Exception): pass\ndef f(event): raise Mine('ouch')", "Mine", "ouch"),
        ("def f(event): raise ValueError('\\ud800')", "ValueError", "ud800"),
        ("def f(event):\n return f(event)", "RecursionError", "maximum recursion depth"),
        ("async def f(event): raise ValueError('in vain')", "ValueError", "in vain"),
        ("import no_such_module\ndef f(event): pass", "ModuleNotFoundError", "no_such_module"),
        ("def f(event: pass", "SyntaxError", ""),
        ("1 / 0", "ZeroDivisionError", "division by zero"),
        ("def g(event): pass", "Runtime.HandlerNotFound", "has no 'f'"),
        ("f = 5", "Runtime.HandlerNotFound", "not callable"),
        ("def f(): pass", "Runtime.HandlerNotFound", "(event)"),
        ("def f(a, b, c): pass", "Runtime.HandlerNotFound", "(event)"),
    ],
)
def test_every_way_to_fail_is_a_typed_500(daemon: RunningDaemon, code: str, kind: str, words: str) -> None:
    daemon.deploy("fails", code)
    for _ in range(2):  # the second time as the first, whether the sandbox was kept or not
        answer = daemon.run("fails", {})
        error = error_of(answer)
        assert answer.status == 500, error
        assert error["errorType"] == kind
        assert words in str(error["errorMessage"])
        assert "/opt/sockd" not in answer.body.decode() and "zygote" not in answer.body.decode()


def test_a_function_without_a_handler_is_refused_at_deploy(daemon: RunningDaemon) -> None:
    with pytest.raises(DeployFailed) as refused:
        daemon.deploy("nothing", {"readme.txt": "hello"})
    assert refused.value.status == 400 and "no handler found" in refused.value.message
    assert daemon.run("nothing").status == 404
