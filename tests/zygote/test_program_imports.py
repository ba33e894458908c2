"""The Zygote of images' programs has imported all that serving a program takes: in an image's root nothing could be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVED = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from sockd_zygote import handler_server, program_imports
sys.path.clear()
class Refusing:
    def find_spec(self, name, path=None, target=None):
        refused.append(name)
        raise ModuleNotFoundError(name)
refused = []
sys.meta_path[:] = [Refusing()]
import os
from sockd_zygote import errors, runtime_api
runtime_api.is_own = lambda peer, port: True  # this process is in no sandbox
function = {"name": "f", "version": "1", "memory_mb": 128, "provided": "image", "env": {},
            "image": {"command": [sys.argv[2], "-c", sys.argv[3]], "directory": "/"}}
program = runtime_api.Program(function)
def call(event, told=None):
    try:
        return program.call(event, bytes(16), time.monotonic_ns() + 10**10, told)
    except errors.ReportedError as error:
        return errors.describe(error)
    except SystemExit as error:
        return str(error.code).encode()
for event, told in ((b'"a"', None), (b'"error"', None), (b'"chunks"', {"client_context": {"custom": {}}}), (b'"exit"', None)):
    print(call(event, told).decode())
def failed(**image):
    try:
        runtime_api.Program({**function, "image": {**function["image"], **image}})
    except (errors.ReportedError, SystemExit) as error:
        return errors.describe(error) if isinstance(error, errors.ReportedError) else str(error.code).encode()
print(failed(command=["/nowhere"]).decode())
print(failed(directory="/nowhere").decode())
print(failed(command=["no\\0thing"]).decode())
print(failed(command=[sys.argv[2], "-c", sys.argv[3], "init"]).decode())
print(failed(command=[sys.argv[2], "-c", "raise SystemExit(9)"]).decode())
try:
    import nothing
except ImportError as error:
    errors.describe(error)
assert refused == ["nothing"], refused
handler_server.flush()
os._exit(0)
"""
PROGRAM = """
import http.client, json, os, sys
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
def ask(method, path, body=None):
    api.request(method, "/2018-06-01/runtime/" + path, body)
    answer = api.getresponse()
    return answer.status, answer.headers, answer.read()
if "init" in sys.argv:
    ask("POST", "init/error", b"{}")
    sys.exit()
while True:
    _, headers, event = ask("GET", "invocation/next")
    this = "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"]
    if event == b'"error"':
        ask("POST", this + "/error", b'{"errorType": "Bad", "errorMessage": "no", "stackTrace": ["line"]}')
    elif event == b'"chunks"':
        assert ask("POST", this + "/nothing", b"")[0] == 404 and ask("GET", "nothing")[0] == 404
        ask("POST", this + "/response", iter([b'"in ', b'pieces"']))
    elif event == b'"exit"':
        os._exit(3)
    else:
        ask("POST", this + "/response", event)
"""
EXPECTED = (
    '"a"',
    '{"errorMessage": "no", "errorType": "Bad"',
    '"in pieces"',
    "3",
    '{"errorMessage": "the image\'s entry point /nowhere does not exist there", "errorType": "Runtime.InvalidEntrypoint"',
    '{"errorMessage": "the working directory /nowhere is not a directory of the image"',
    '{"errorMessage": "\'no\\\\x00thing\' cannot be run',
    '{"errorMessage": "", "errorType": "Runtime.UnknownReason"',
    "9",
)


def test_serving_a_program_imports_nothing() -> None:
    repo = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-S", "-c", SERVED, str(repo), sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(EXPECTED), lines
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert line.startswith(expected), line
