"""The Zygote of images' programs has imported all that serving a program takes: in an image's root nothing could be imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SERVED = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from sockd_zygote.handlers import handler_server
from sockd_zygote import program_imports
sys.path.clear()
class Refusing:
    def find_spec(self, name, path=None, target=None):
        refused.append(name)
        raise ModuleNotFoundError(name)
refused = []
sys.meta_path[:] = [Refusing()]
import os
from sockd_zygote.messages import errors
from sockd_zygote.handlers.programs import runtime_api
runtime_api.is_own = lambda peer, port: True  # this process is in no sandbox
function = {"name": "f", "version": "1", "memory_mb": 128, "provided": "image", "env": {},
            "image": {"command": [sys.argv[2], "-c", sys.argv[3]], "directory": "/"}}
program = runtime_api.Program(function)
def call(event, metadata=None):
    try:
        return program.call(event, bytes(16), time.monotonic_ns() + 10**10, reported)
    except errors.ReportedError as error:
        return errors.describe(error)
    except SystemExit as error:
        return str(error.code).encode()
for event in ("a", "error", "chunks", "breaks", "exit"):
    reported = {"client_context": {"custom": {}}} if event == "chunks" else None
    print(call(b'"%s"' % event.encode(), reported).decode())
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
from sockd_zygote.handlers.programs import web_server
import json
class Outlet:
    def head(self, status, headers): print(status, sorted(dict(headers)))
    def chunk(self, data): print(data.decode())
    def flush(self): pass
served = {**function["image"], "command": [sys.argv[2], "-c", sys.argv[4]], "port": 1, "shares_ports": True,
          "init_timeout_s": 10}
server = web_server.WebServer({**function, "image": served})
http = {"method": "GET", "root_path": "/run/f", "raw_path": "/a", "query": "b=c", "headers": [["x-a", "d"]]}
server.call(b"", bytes(16), time.monotonic_ns() + 10**10, {"http": http}).pour(Outlet())
for event in ({"requestContext": {"http": {"method": "PUT"}}, "rawPath": "/e", "body": "f", "cookies": ["g=h"]},
              {"httpMethod": "POST", "path": "/i", "requestContext": {}, "headers": {"X-A": "j"}, "body": "ayk="},
              {"n": 1}, 5):
    print(server.call(json.dumps(event).encode(), bytes(16), time.monotonic_ns() + 10**10).decode())
try:
    server.call(b"", bytes(16), time.monotonic_ns() + 10**10, {"http": {**http, "raw_path": "/quit"}}).pour(Outlet())
except SystemExit as error:
    print(error.code)
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
    elif event == b'"breaks"':
        api.putrequest("POST", "/2018-06-01/runtime/" + this + "/response")
        api.putheader("Transfer-Encoding", "chunked")
        api.endheaders(b"1\\r\\nx\\r\\n0\\r\\nLambda-Runtime-Function-Error-Type: Broke\\r\\n"
                       b"Lambda-Runtime-Function-Error-Body: e30=\\r\\n\\r\\n")
        api.getresponse().read()
    elif event == b'"exit"':
        os._exit(3)
    else:
        ask("POST", this + "/response", event)
"""
SERVER = """
import http.server, os
class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/quit"):
            os._exit(4)
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        reported = [self.command, self.path, self.headers.get("x-a"), self.headers.get("cookie"), body]
        answer = repr([*reported, self.headers.get("x-forwarded-prefix")]).encode()
        self.send_response(200)
        self.send_header("set-cookie", "y=z")
        self.end_headers()
        self.wfile.write(answer)
    do_PUT = do_POST = do_GET
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Requests).serve_forever()
"""
EXPECTED = (
    '"a"',
    '{"errorMessage": "no", "errorType": "Bad"',
    '"in pieces"',
    '{"errorMessage": "the answer failed in the middle", "errorType": "Broke"',
    "3",
    '{"errorMessage": "the image\'s entry point /nowhere does not exist there", "errorType": "Runtime.InvalidEntrypoint"',
    '{"errorMessage": "the working directory /nowhere is not a directory of the image"',
    '{"errorMessage": "\'no\\\\x00thing\' cannot be run',
    '{"errorMessage": "", "errorType": "Runtime.UnknownReason"',
    "9",
    "200 ['Date', 'Server', 'set-cookie']",
    "['GET', '/a?b=c', 'd', None, '', '/run/f']",
    """{"statusCode": 200, "body": "['PUT', '/e', None, 'g=h', 'f', None]", "isBase64Encoded": false""",
    """{"statusCode": 200, "body": "['POST', '/i', 'j', None, 'ayk=', None]", "isBase64Encoded": false""",
    """"['POST', '/events', None, None, '{\\"n\\": 1}', None]\"""",
    """"['POST', '/events', None, None, '5', None]\"""",
    "4",
)


def test_serving_a_program_imports_nothing(tmp_path: Path) -> None:
    repo = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-S", "-c", SERVED, str(repo), sys.executable, PROGRAM, SERVER]
    with open(tmp_path / "said", "w+") as said, open(tmp_path / "errors", "w+") as errors:
        process = subprocess.Popen(command, stdout=said, stderr=errors, start_new_session=True)
        try:
            status = process.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            process.wait()
        errors.seek(0)
        assert status == 0, errors.read()
        said.seek(0)
        lines = said.read().splitlines()
    assert len(lines) == len(EXPECTED), "\n".join(lines)
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert line.startswith(expected), line
