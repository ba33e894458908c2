"""Functions laid out as OpenLambda's published examples are, deployed as they are: file names, entry points, ol.yaml.

The sources are ours; what they are called, what they import and what they are configured with is theirs (`examples/` of
open-lambda/open-lambda). Frameworks come from uv's own index.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon

pytestmark = pytest.mark.root

FLASK = "flask==3.1.0\n"
METHODS = "triggers:\n  http:\n    - method: GET\n    - method: POST\n"
KAFKA = '  kafka:\n    - bootstrap_servers:\n        - "localhost:9092"\n      topics:\n        - "t"\n'
BAD_SYSCALL = """
from ctypes import *
def f(event):
    libc = CDLL("/lib/x86_64-linux-gnu/libc.so.6")
    return libc.syscall(103, 0, "")
"""
FORKS = """
import os
def fork_times(n):
    if n == 0: return 0
    try: pid = os.fork()
    except OSError: return 0
    if pid: return os.waitpid(pid, 0)[1] // 256
    os._exit(1 + fork_times(n - 1))
def f(event): return fork_times(event["times"])
"""
ALLOCATES = """
import os
def attempt(mb):
    pid = os.fork()
    if pid == 0:
        buf = 'M' * (mb * 1024**2)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
def f(event):
    for mb in range(0, 512, 8):
        if not attempt(mb): return mb - 8
    return 512
"""
FLASK_APP = """
from flask import Flask, Response, render_template, request
{name} = Flask("hi")
@{name}.route("/")
def hi(): return Response("hi\\n", status=418, headers={{"A": "B"}})
@{name}.route("/echo", methods=["GET", "POST", "PUT"])
def echo(): return Response(request.get_data(as_text=True), mimetype=request.content_type or "text/plain")
@{name}.route("/page/")
def page(): return render_template("index.html")
@{name}.errorhandler(404)
def missing(e): return f"{{request.base_url}} {{request.url_root}}", 404
"""
FASTAPI_APP = """
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
def hello(): return {"message": "hello world"}
@app.get("/items/{name}")
async def item(name: str, q: int = 0): return {"name": name, "q": q}
"""


def deploy(real: RunningDaemon, name: str, files: Mapping[str, str]) -> None:
    try:
        real.deploy(name, dict(files), memory_mb=256, timeout_s=60)
    except DeployFailed as error:
        if "requirements.txt" in files and error.type.startswith("Packages."):
            pytest.skip(f"no package index can be reached: {error.message}")
        raise


@pytest.mark.parametrize(
    ("name", "source", "event", "result"),
    [
        ("echo", "def f(event):\n    return event\n", [1, "x"], [1, "x"]),
        ("hello", "def f(event):\n    return 'hello'\n", None, "hello"),
        (
            "timeout",
            "import time\ndef f(event):\n    time.sleep(int(event))\n    return f'slept {event}'\n",
            0,
            "slept 0",
        ),
        ("syslog", BAD_SYSCALL, {}, -1),
        ("fbomb", FORKS, {"times": 20}, 20),
    ],
)
def test_functions_of_events(real: RunningDaemon, name: str, source: str, event: object, result: object) -> None:
    deploy(real, name, {"f.py": source})
    assert real.call(name, event) == result


def test_a_function_that_takes_all_memory_there_is(real: RunningDaemon) -> None:
    deploy(real, "max-mem-alloc", {"f.py": ALLOCATES})
    assert 150 < real.call("max-mem-alloc") < 256


def test_variables_of_ol_yaml(real: RunningDaemon) -> None:
    yaml = METHODS + '\nenvironment:\n  MY_ENV_VAR: "Hello from environment"\n  DEBUG_MODE: "true"\n  N: 10\n'
    source = "import os\ndef f(event):\n    return [os.environ.get(k) for k in ('MY_ENV_VAR', 'DEBUG_MODE', 'N')]\n"
    deploy(real, "env-test", {"f.py": source, "ol.yaml": yaml})
    assert real.call("env-test") == ["Hello from environment", "true", "10"]


def test_kafka_triggers_are_reported_and_requests_work(real: RunningDaemon) -> None:
    deploy(real, "kafka-basic", {"f.py": "def f(event):\n    return event\n", "ol.yaml": METHODS + KAFKA})
    assert real.call("kafka-basic", {"a": 1}) == {"a": 1}


def test_scratch_is_where_openlambda_has_it(real: RunningDaemon) -> None:
    source = "def f(event):\n    open('/host/tmp/x', 'w').write('1')\n    return open('/tmp/x').read()\n"
    deploy(real, "scratch", {"f.py": source})
    assert real.call("scratch") == "1"


def test_a_new_sandbox_for_each_request(real: RunningDaemon) -> None:
    source = "n = []\ndef f(event):\n    n.append(1)\n    return len(n)\n"
    deploy(real, "no-reuse", {"f.py": source, "ol.yaml": "reuse-sandbox: false\n"})
    assert [real.call("no-reuse") for _ in range(3)] == [1, 1, 1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "file", "variable", "yaml"),
    [
        ("flask-test", "f.py", "app", None),
        ("flask-entry-test", "app.py", "app", METHODS + 'environment:\n  OL_ENTRY_FILE: "app.py"\n'),
        (
            "wsgi-entry-test",
            "main.py",
            "my_wsgi_app",
            METHODS + 'environment:\n  OL_ENTRY_FILE: "main.py"\n  OL_WSGI_ENTRY: "my_wsgi_app"\n',
        ),
    ],
)
def test_flask(real: RunningDaemon, name: str, file: str, variable: str, yaml: str | None) -> None:
    files = {file: FLASK_APP.format(name=variable), "requirements.txt": FLASK, "templates/index.html": "<h1>é</h1>"}
    deploy(real, name, files | ({"ol.yaml": yaml} if yaml else {}))
    answer = real.request("GET", f"/run/{name}")
    assert (answer.status, answer.headers["a"], answer.body) == (418, "B", b"hi\n")
    answer = real.request("POST", f"/run/{name}/echo", b'{"key": 1}', {"Content-Type": "application/json"})
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b'{"key": 1}', "application/json")
    assert real.request("GET", f"/run/{name}/page/").body.decode() == "<h1>é</h1>"
    base = f"http://127.0.0.1:{real.port}/run/{name}/"
    assert real.request("GET", f"/run/{name}/none").body.decode() == f"{base}none {base}"
    assert real.request("DELETE", f"/run/{name}").status == 405
    assert real.request("PUT", f"/run/{name}/echo", b"x").status == (405 if yaml else 200)


@pytest.mark.timeout(120)
def test_fastapi(real: RunningDaemon) -> None:
    deploy(real, "fastapi-test", {"f.py": FASTAPI_APP, "requirements.txt": "fastapi==0.128.0\n"})
    assert real.request("GET", "/run/fastapi-test").json == {"message": "hello world"}
    assert real.request("GET", "/run/fastapi-test/items/a%20b?q=7").json == {"name": "a b", "q": 7}
    answer = real.request("GET", "/run/fastapi-test/items/a?q=x")
    assert answer.status == 422 and answer.headers["content-type"] == "application/json"
    assert b'"/run/fastapi-test/openapi.json"' in real.request("GET", "/run/fastapi-test/docs").body.replace(b"'", b'"')
