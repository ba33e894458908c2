"""Web apps over `/run`: the app's own status, headers and body, piece by piece, and every way for that to end."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root

STOP_GRACE_S = 2

LINGERS = """
def lingers(port):
    import socket
    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.recv(1)
    print("lingered")
"""
WSGI = (
    LINGERS
    + """
import json, os, sys

def app(environ, start_response):
    path, gate = environ["PATH_INFO"], environ["QUERY_STRING"]
    if path == "/gate":
        import socket
        start_response("200 OK", [("content-type", "text/event-stream")])
        def events():
            try:
                yield b"data: first\\n\\n"
                with socket.create_connection(("127.0.0.1", int(gate))) as link:
                    link.sendall(b"here\\n")
                    link.recv(10)
                    yield b"data: second\\n\\n"
                    link.sendall(b"on\\n")
                    yield b"data: third\\n\\n"
            finally:
                print("closed")
        return events()
    if path == "/raises":
        raise ValueError("no")
    if path == "/breaks":
        start_response("200 OK", [])
        return (x if x else 1 / 0 for x in [b"half", b""])
    if path == "/hangs":
        start_response("200 OK", [])
        def hang():
            yield b"half"
            while True: pass
        return hang()
    if path == "/dies":
        start_response("200 OK", [])
        return (x or os._exit(3) for x in [b"half", b""])
    if path == "/injects":
        start_response("200 OK", [("a", "b\\r\\nx-forged: 1")])
        return []
    if path == "/forges":
        start_response("200 OK", [("X-Sockd-Cold", "7"), ("Connection", "close"), ("X-Own", "1")])
        return [b"x"]
    if path == "/floods":
        start_response("200 OK", [])
        return (bytes(100_000) for _ in range(int(gate)))
    if path == "/short":
        start_response("200 OK", [("content-length", "10")])
        return [b"half"]
    if path == "/after":
        start_response("200 OK", [])
        class Body:
            def __iter__(self): return iter([b"who", b"le"])
            def close(self): raise KeyError("after the answer")
        return Body()
    if path.startswith("/lingers"):
        start_response("200 OK", [("content-length", "5")])
        class Lingering:
            def __iter__(self):
                yield b"whole"
                if path.endswith("/before-its-end"): lingers(gate)
            def close(self): lingers(gate)
        return Lingering()
    body = environ["wsgi.input"].read()
    reported = {k: v for k, v in environ.items() if isinstance(v, str) and k.isupper() and k not in os.environ}
    start_response("418 I'm a teapot", [("Content-Type", "application/json"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    print("in the app")
    return [json.dumps({"environ": reported, "body": body.decode()}).encode()]
"""
)

ASGI = (
    LINGERS
    + """
import asyncio, json
from contextlib import asynccontextmanager

started = []

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        started.append(1)
        scope["state"]["started"] = len(started)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        return
    body = (await receive())["body"]
    if scope["path"].endswith("/waits"):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: first\\n\\n", "more_body": True})
        message = await receive()
        print("reported", message["type"])
        return
    if scope["path"].endswith("/short"):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half"})
    if scope["path"].endswith("/after"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"who", "more_body": True})
        await send({"type": "http.response.body", "body": b"le"})
        raise KeyError("after the answer")
    if scope["path"].endswith("/lingers"):
        headers = [] if scope["path"].endswith("chunked/lingers") else [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"whole"})
        lingers(scope["query_string"])
        return
    reported = {k: v.decode() if isinstance(v, bytes) else v for k, v in scope.items() if k != "headers"}
    reported["headers"] = dict((k.decode(), v.decode()) for k, v in scope["headers"])
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-own", b"1")]})
    for part in (json.dumps(reported).encode(), b"\\n", body):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})
"""
)


@pytest.fixture(scope="module")
def config() -> str:
    return f"[http]\nmax_streamed_bytes = 3000000\nstop_grace_s = {STOP_GRACE_S}\n"


@pytest.fixture(scope="module")
def apps(daemon: RunningDaemon) -> RunningDaemon:
    """The daemon with an app of each kind."""
    daemon.deploy("wsgi", {"app.py": WSGI}, concurrency=1, timeout_s=20)
    daemon.deploy("asgi", {"app.py": ASGI}, concurrency=1, timeout_s=20)
    return daemon


class Client:
    """A connection that is read as the bytes come."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=20)
        self._read = b""

    def ask(self, path: str, method: str = "GET", body: bytes = b"", *, version: str = "1.1") -> None:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.socket.sendall(f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{length}\r\n".encode() + body)

    def until(self, end: bytes) -> bytes:
        """Everything up to these bytes."""
        while end not in self._read:
            data = self.socket.recv(1 << 16)
            assert data, self._read
            self._read += data
        found, _, self._read = self._read.partition(end)
        return found + end

    def rest(self) -> bytes:
        """Everything until the daemon closes."""
        while data := self.socket.recv(1 << 16):
            self._read += data
        return self._read


@contextmanager
def client(daemon: RunningDaemon) -> Iterator[Client]:
    client = Client(daemon)
    with client.socket:
        yield client


def test_a_wsgi_app_has_the_request_and_the_answer_to_itself(apps: RunningDaemon) -> None:
    headers = {"Content-Type": "text/plain", "X-One": "1", "X_Two": "2", "Cookie": "c=3", "Host": "localhost:7"}
    answer = apps.request("PATCH", "/run/wsgi/a%20b/%C3%A9?q=1%202", "hellö".encode(), headers)
    assert (answer.status, answer.headers["content-type"]) == (418, "application/json")
    assert answer.headers["x-sockd-cold"] in "01" and answer.headers["x-amzn-requestid"]
    reported, body = answer.json["environ"], answer.json["body"]
    assert body == "hellö"
    assert (reported["REQUEST_METHOD"], reported["SCRIPT_NAME"], reported["QUERY_STRING"]) == (
        "PATCH",
        "/run/wsgi",
        "q=1%202",
    )
    assert reported["PATH_INFO"].encode("latin-1").decode() == "/a b/é"
    assert (reported["CONTENT_TYPE"], reported["CONTENT_LENGTH"]) == ("text/plain", "6")
    assert (reported["HTTP_X_ONE"], reported["HTTP_COOKIE"], reported["HTTP_HOST"]) == ("1", "c=3", "localhost:7")
    assert "HTTP_X_TWO" not in reported and reported["REMOTE_ADDR"] == "127.0.0.1"
    assert "in the app" in apps.log_of("wsgi", answer)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_an_app_is_called_by_any_method(apps: RunningDaemon, method: str) -> None:
    answer = apps.request(method, "/run/wsgi")
    assert answer.json["environ"]["REQUEST_METHOD"] == method and answer.json["environ"]["PATH_INFO"] == "/"


def test_head_has_no_body_and_the_connection_goes_on(apps: RunningDaemon) -> None:
    with client(apps) as connection:
        connection.ask("/run/wsgi", "HEAD")
        head = connection.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 418 ") and head.count(b"set-cookie") == 2
        connection.ask("/run/wsgi")
        assert connection.until(b"\r\n").startswith(b"HTTP/1.1 418 ")


def test_an_asgi_app_is_started_once_and_reported_all(apps: RunningDaemon) -> None:
    for _ in range(2):
        answer = apps.request("PUT", "/run/asgi/x%2Fy?a=b", b"body", {"X-One": "1"})
        assert (answer.status, answer.headers["x-own"]) == (201, "1")
        reported, _, body = answer.body.partition(b"\n")
        assert body == b"body"
        scope = json.loads(reported)
        assert (scope["path"], scope["raw_path"]) == ("/run/asgi/x/y", "/run/asgi/x%2Fy")
        assert (scope["root_path"], scope["query_string"], scope["method"]) == ("/run/asgi", "a=b", "PUT")
        assert scope["headers"]["x-one"] == "1" and scope["state"] == {"started": 1}


def test_each_piece_is_sent_when_it_is_made(apps: RunningDaemon, gate: Gate) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/wsgi/gate?{gate.port}")
        assert b"content-type: text/event-stream" in connection.until(b"data: first\n\n")
        gate.arrived()
        gate.open()
        connection.until(b"data: third\n\n")
        assert connection.until(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"


def test_http_1_0_reads_to_the_end_of_the_connection(apps: RunningDaemon, gate: Gate) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/wsgi/gate?{gate.port}", version="1.0")
        gate.arrived()
        gate.open()
        answer = connection.rest()
        assert b"connection: close" in answer and answer.endswith(
            b"\r\n\r\ndata: first\n\ndata: second\n\ndata: third\n\n"
        )


def test_a_client_that_hangs_up_closes_the_generator_and_the_sandbox_goes_on(apps: RunningDaemon, gate: Gate) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/wsgi/gate?{gate.port}")
        head = connection.until(b"data: first\n\n")
        gate.arrived()
    sandbox = next(line for line in head.split(b"\r\n") if line.startswith(b"x-sockd-sandbox")).decode()
    gate.open()
    after = apps.request("GET", "/run/wsgi")  # one at a time: the other has ended
    assert sandbox == f"x-sockd-sandbox: {after.headers['x-sockd-sandbox']}"
    assert any("closed" in record["text"] for record in apps.logs("wsgi"))


def test_an_asgi_app_learns_that_its_client_has_gone(apps: RunningDaemon) -> None:
    with client(apps) as connection:
        connection.ask("/run/asgi/waits")
        connection.until(b"data: first\n\n")
    assert apps.request("GET", "/run/asgi").headers["x-sockd-cold"] == "0"
    assert any("reported http.disconnect" in record["text"] for record in apps.logs("asgi"))


def test_who_does_not_stop_is_killed(apps: RunningDaemon) -> None:
    with client(apps) as connection:
        connection.ask("/run/wsgi/hangs")
        connection.until(b"half")
    answer = apps.request("GET", "/run/wsgi")
    assert (answer.status, answer.headers["x-sockd-cold"]) == (418, "1")


@pytest.mark.parametrize("path", ["breaks", "dies"])
def test_an_error_in_the_middle_cuts_the_answer(apps: RunningDaemon, path: str) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/wsgi/{path}")
        answer = connection.rest()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"half\r\n")


def test_a_body_shorter_than_its_content_length_is_an_error(apps: RunningDaemon) -> None:
    words = "the body that the app gave is 6 bytes shorter than its Content-Length"
    whole = apps.request("GET", "/run/asgi/short")
    assert (whole.status, whole.json["errorType"], whole.json["errorMessage"]) == (500, "RuntimeError", words)
    with pytest.raises(http.client.IncompleteRead):  # what came has been sent by then
        apps.request("GET", "/run/wsgi/short")
    assert f"[ERROR] RuntimeError: {words}" in json.dumps(apps.logs("wsgi"))


@pytest.mark.parametrize("name", ["wsgi", "asgi"])
def test_an_error_behind_a_complete_answer_leaves_it_whole_and_is_logged(apps: RunningDaemon, name: str) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/{name}/after")
        head = connection.until(b"\r\n\r\n")
        body = connection.until(b"\r\n0\r\n\r\n")
        assert body in (b"5\r\nwhole\r\n0\r\n\r\n", b"3\r\nwho\r\n2\r\nle\r\n0\r\n\r\n")
    request_id = next(line for line in head.decode().split("\r\n") if line.startswith("x-amzn-requestid")).split(": ")[
        1
    ]
    (text,) = (record["text"] for record in apps.logs(name) if record["request_id"] == request_id)
    assert text.startswith("[ERROR] KeyError: 'after the answer'\nTraceback") and "/var/task/app.py" in text
    assert apps.manage("GET", f"/traces/{request_id}").json["outcome"] == "KeyError"
    assert apps.request("GET", f"/run/{name}").headers["x-sockd-cold"] == "0"


@pytest.mark.parametrize("path", ["asgi/lingers", "wsgi/lingers", "wsgi/lingers/before-its-end"])
def test_work_behind_a_complete_answer_goes_on_when_its_client_has_gone(apps: RunningDaemon, path: str) -> None:
    name = path.partition("/")[0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        with client(apps) as connection:
            connection.ask(f"/run/{path}?{server.getsockname()[1]}")
            connection.until(b"\r\n\r\nwhole")
        if path.endswith("before-its-end"):
            with server.accept()[0] as ending:
                ending.send(b"1")
        lingering, _ = server.accept()
        with lingering:
            lingering.settimeout(1.25 * STOP_GRACE_S)
            with pytest.raises(TimeoutError):
                lingering.recv(1)  # it would end if the function were ended
            lingering.send(b"1")
    apps.when(lambda: any("lingered" in record["text"] for record in apps.logs(name)))


def test_the_deadline_behind_a_complete_answer_leaves_it_whole(apps: RunningDaemon) -> None:
    apps.deploy("lingering", {"app.py": ASGI}, timeout_s=1.5)
    with socket.create_server(("127.0.0.1", 0)) as server, client(apps) as connection:
        connection.ask(f"/run/lingering/chunked/lingers?{server.getsockname()[1]}")
        assert connection.until(b"\r\n0\r\n\r\n").endswith(b"\r\n\r\n5\r\nwhole\r\n0\r\n\r\n")
    apps.when(lambda: any("timed out after 1.50 seconds" in record["text"] for record in apps.logs("lingering")))


def test_the_deadline_holds_in_the_middle_of_an_answer(apps: RunningDaemon) -> None:
    apps.deploy("hasty", {"app.py": WSGI}, timeout_s=1.5)
    with client(apps) as connection:
        connection.ask("/run/hasty/hangs")
        assert connection.rest().endswith(b"half\r\n")


def test_a_slow_reader_holds_the_function_up_until_its_deadline(apps: RunningDaemon) -> None:
    apps.deploy("unread", {"app.py": WSGI}, timeout_s=2, concurrency=1)
    apps.request("GET", "/run/unread")
    with client(apps) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.ask("/run/unread/floods?29")
        # The only sandbox is busy until that deadline; then there is a new one.
        assert apps.request("GET", "/run/unread").status == 418


@pytest.mark.parametrize(("count", "is_whole"), [(29, True), (31, False)])
def test_all_of_a_streamed_answer_is_limited(apps: RunningDaemon, count: int, *, is_whole: bool) -> None:
    with client(apps) as connection:
        connection.ask(f"/run/wsgi/floods?{count}", version="1.0")
        body = connection.rest().partition(b"\r\n\r\n")[2]
        assert (len(body) == count * 100_000) == is_whole and len(body) <= 3_000_000


def test_what_an_app_raises_before_its_head_is_an_error_as_of_any_function(apps: RunningDaemon) -> None:
    answer = apps.request("GET", "/run/wsgi/raises")
    assert (answer.status, answer.json["errorType"], answer.json["errorMessage"]) == (500, "ValueError", "no")
    assert "/var/task/app.py" in answer.json["stackTrace"][-1]


def test_a_header_cannot_bring_another(apps: RunningDaemon) -> None:
    answer = apps.request("GET", "/run/wsgi/injects")
    assert (answer.status, answer.json["errorType"]) == (500, "ValueError") and "x-forged" not in answer.headers
    answer = apps.request("GET", "/run/wsgi/forges")
    assert answer.headers["x-own"] == "1" and answer.headers["x-sockd-cold"] in "01"
    assert "connection" not in answer.headers


def test_a_websocket_is_refused(apps: RunningDaemon) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    for name in ("wsgi", "asgi"):
        answer = apps.request("GET", f"/run/{name}", None, headers)
        assert answer.status == 501 and "server-sent events" in answer.json["errorMessage"]


def test_an_app_is_not_for_events(apps: RunningDaemon) -> None:
    answer = apps.request("POST", "/2015-03-31/functions/wsgi/invocations", b"{}")
    assert answer.headers["x-amz-function-error"] == "Unhandled" and answer.json["errorType"] == "NotHttp"


def test_the_example_of_the_readme(daemon: RunningDaemon) -> None:
    readme = (Path(__file__).parents[2] / "docs/guide/web-apps.md").read_text()
    daemon.deploy("shop", {"app.py": readme.partition("cat > shop/app.py <<'EOF'\n")[2].partition("EOF\n")[0]})
    answer = daemon.request("PUT", "/run/shop/any/path?query=1")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b"data: PUT /any/path?query=1\n\n"


@pytest.mark.parametrize("mode", ["BUFFERED", "RESPONSE_STREAM"])
def test_a_function_url_leads_to_an_app_as_well(apps: RunningDaemon, mode: str) -> None:
    path = urlsplit(
        apps.manage("PUT", "/functions/wsgi/url", json.dumps({"mode": mode}).encode()).json["path_url"]
    ).path.rstrip("/")
    answer = apps.request("PATCH", f"{path}/some/path?q=1", b"body")
    reported = answer.json["environ"]
    assert (answer.status, answer.json["body"]) == (418, "body")
    assert (reported["SCRIPT_NAME"], reported["PATH_INFO"], reported["QUERY_STRING"]) == (path, "/some/path", "q=1")
