"""Web servers in container images: how requests reach them, and what is said of one that does not answer."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Literal

import pytest

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.in_images import image_programs
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.images.image_layouts import PYTHON, Files, python_files, write_layout

pytestmark = pytest.mark.root

WEB_SERVER = f"""#!{PYTHON}
import http.server, json, os, sys, threading, time
begun = time.monotonic()
class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        if self.path == "/exit":
            os._exit(5)
        if self.path == "/silent" or self.path == "/tired" and time.monotonic() > begun + 3:
            threading.Event().wait()
        if self.path == "/hints":
            self.wfile.write(b"HTTP/1.1 103 Early Hints\\r\\nlink: </a.css>\\r\\n\\r\\n")
        if self.path in ("/short", "/quits"):
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"part")
            self.wfile.flush()
            self.close_connection = True
            if self.path == "/quits":
                os._exit(6)
            return
        reported = {{"method": self.command, "path": self.path, "headers": self.headers.items(),
                "body": self.rfile.read(int(self.headers.get("content-length", 0))).decode(), "port": os.environ["PORT"]}}
        data = json.dumps(reported).encode()
        self.send_response({{"/teapot": 418, "/broken": 503, "/tired": 503}}.get(self.path, 200))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("set-cookie", "a=b")
        self.send_header("set-cookie", "c=d")
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_DELETE = answer
    def log_message(self, *args):
        pass
at = os.environ.get("AT", "127.0.0.1"), int([*sys.argv, os.environ["PORT"]][1])
http.server.ThreadingHTTPServer(at, Requests).serve_forever()
"""


@pytest.fixture(scope="module")
def python() -> bytes:
    """The layer with an interpreter."""
    return python_files().tar()


@pytest.fixture(scope="module")
def web(daemon: RunningDaemon, python: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a web server; its digest."""
    path = tmp_path_factory.mktemp("web")
    config = {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin"], "ExposedPorts": {"9000/tcp": {}}}
    write_layout(path, [python, Files(executable={"server": WEB_SERVER})], config)
    return upload(daemon, path)


@pytest.mark.parametrize("network", ["host", "none"])
def test_requests_are_forwarded_to_a_web_server(daemon: RunningDaemon, web: str, network: str) -> None:
    deploy(daemon, "web", web, app_port=8080, network=network)
    claimed = {"x-forwarded-prefix": "/not/so", "x-amzn-lambda-context": "{}"}
    answer = daemon.request("PUT", "/run/web/some/path?q=1", b"hello", {"x-own": "value", **claimed})
    assert answer.status == 200, answer
    reported = answer.json
    assert (reported["method"], reported["path"], reported["body"]) == ("PUT", "/some/path?q=1", "hello")
    headers = {name.lower(): value for name, value in reported["headers"]}
    assert (headers["x-own"], headers["x-forwarded-prefix"]) == ("value", "/run/web")
    assert json.loads(headers["x-amzn-lambda-context"])["env_config"]["function_name"] == "web"
    assert len(headers) == len(reported["headers"]), "what a client claims is dropped"
    assert (reported["port"] == "8080") == (network != "host"), "on the host's network ports are shared"
    assert daemon.request("GET", "/run/web/teapot").status == 418
    assert daemon.request("GET", "/run/web/hints").json["path"] == "/hints"


def test_the_start_of_a_web_server_is_its_init(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "timed", web, app_port=8080)
    cold = daemon.request("GET", "/run/timed/").timing
    assert cold["init"] > 1 and cold["setup"] > 0, "an interpreter has started"
    daemon.when(lambda: daemon.request("GET", "/run/timed/").timing["init"] == 0)


def test_a_web_server_may_listen_on_port_80(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-80", web, command=["/server", "80"], app_port=80, network="none")
    answer = daemon.request("GET", "/run/web-80/")
    assert (answer.status, answer.json["port"]) == (200, "80"), answer


def test_events_reach_a_web_server_as_requests(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-events", web, app_port=8080, network="none")
    event = {
        "version": "2.0",
        "rawPath": "/a",
        "rawQueryString": "b=c",
        "requestContext": {"http": {"method": "POST"}},
        "body": "d",
    }
    answer = json.loads(daemon.manage("POST", "/functions/web-events/invoke", json.dumps(event).encode()).body)
    reported = json.loads(answer["body"])
    assert (reported["method"], reported["path"], reported["body"]) == ("POST", "/a?b=c", "d")
    assert (answer["statusCode"], answer["cookies"], answer["isBase64Encoded"]) == (200, ["a=b", "c=d"], False)
    other = json.loads(daemon.manage("POST", "/functions/web-events/invoke", b'{"n": 1}').body)
    assert (other["method"], other["path"], other["body"]) == ("POST", "/events", '{"n": 1}')


def test_an_image_with_awss_web_adapter_needs_no_setting(daemon: RunningDaemon, python: bytes, tmp_path: Path) -> None:
    files = Files(executable={"server": WEB_SERVER, "opt/extensions/lambda-adapter": "not run"})
    write_layout(tmp_path, [python, files], {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin", "PORT=9000"]})
    deploy(daemon, "adapted", upload(daemon, tmp_path), network="none")
    assert daemon.request("GET", "/run/adapted/x").json["port"] == "9000"


@pytest.mark.parametrize(("network", "words"), [("host", "listen on $PORT"), ("none", "asked on port 8080")])
def test_a_deploy_says_where_a_web_server_is_asked(network: Literal["host", "none"], words: str) -> None:
    assert words in image_programs.port_words(FunctionConfig(image="i", app_port=8080, network=network))


@pytest.mark.parametrize(
    ("port", "env", "path", "words"),
    [
        (
            3000,
            {},
            "/",
            "GET / on port 3000 was refused, as no process listens there. The program listens on 8080. Set app_port",
        ),
        (
            *(8080, {"AWS_LWA_READINESS_CHECK_PORT": "1"}, "/"),
            "GET / on port 1 was refused, as no process listens there. The program listens on 8080. It must listen on $PORT",
        ),
        (8080, {}, "/broken", "GET /broken on port 8080 has status 503, and not one below 500. Set readiness_path"),
        (8080, {}, "/tired", "GET /tired on port 8080 has status 503, and not one below 500. Set readiness_path"),
        (8080, {}, "/silent", "GET /silent on port 8080 has no answer. Set readiness_path"),
        (
            *(3000, {"AWS_LWA_READINESS_CHECK_PROTOCOL": "tcp"}, "/"),
            "a connection to port 3000 was refused, as no process listens there. The program listens on 8080. Set app_port",
        ),
    ],
)
def test_an_error_says_what_a_web_server_that_is_not_ready_was_asked(
    daemon: RunningDaemon, web: str, port: int, env: dict[str, str], path: str, words: str
) -> None:
    settings = {"app_port": port, "readiness_path": path, "env": env, "init_timeout_s": 4}
    deploy(daemon, "web-silent", web, command=["/server", "8080"], network="none", **settings)
    answer = daemon.request("GET", "/run/web-silent/")
    assert (answer.status, answer.json["errorType"]) == (500, "WebServer.NotReady")
    message = answer.json["errorMessage"]
    assert message.startswith("the web server was not ready after 3.") and words in message
    is_heard = path != "/silent"  # else the first request lasts until the deadline
    assert ("sockd waits for the web server: " in daemon.log_of("web-silent", answer)) == is_heard


def test_an_app_in_an_image_is_refused(daemon: RunningDaemon, web: str) -> None:
    headers = {"x-sockd-overrides": json.dumps({"image": web, "app": "wsgi"})}
    answer = daemon.manage("PUT", "/functions/web-app", b"PK\5\6" + bytes(18), headers)
    assert "start a web server in the image" in answer.body.decode()
    assert daemon.manage("GET", "/functions/web-app").status == 404


def test_a_web_server_is_asked_on_the_port_that_its_image_exposes(daemon: RunningDaemon, web: str) -> None:
    headers = {"x-sockd-overrides": json.dumps({"image": web, "network": "none"})}
    lines = daemon.manage("PUT", "/functions/web-exposed", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "app_port is 9000, which the image exposes" in lines
    assert daemon.request("GET", "/run/web-exposed/").json["port"] == "9000"


def test_a_web_server_without_its_setting_is_recognized(daemon: RunningDaemon, web: str) -> None:
    settings = {"image": web, "env": {"PORT": "9000"}, "network": "none", "init_timeout_s": 4, "runtime": "provided"}
    with pytest.raises(DeployFailed) as failed:
        daemon.deploy("web-unset", {}, check=True, **settings)
    assert "It listens on 9000: a web server needs app_port" in "".join(failed.value.error["stackTrace"])
    headers = {"x-sockd-overrides": json.dumps({**settings, "check": False})}
    lines = daemon.manage("PUT", "/functions/web-unset", b"PK\5\6" + bytes(18), headers).body.decode()
    assert "the image exposes port 9000: a web server there needs app_port = 9000" in lines
    refused = json.loads(daemon.manage("POST", "/functions/web-unset/debug", "{}").body)["result"]
    assert refused["status"] == 400 and b"runs in a container image" in base64.b64decode(refused["body"])
    answer = daemon.request("GET", "/run/web-unset/")
    assert answer.json["errorType"] == "Sandbox.Timedout"
    assert "It listens on 9000: a web server needs app_port" in daemon.log_of("web-unset", answer)


def test_an_error_says_that_a_web_server_listens_at_another_address(daemon: RunningDaemon, web: str) -> None:
    env = {"AT": "127.0.0.2"}
    deploy(daemon, "web-else", web, app_port=8080, network="none", env=env, init_timeout_s=2)
    answer = daemon.request("GET", "/run/web-else/")
    assert "listens on this port, but not at 127.0.0.1" in answer.json["errorMessage"]


@pytest.mark.parametrize(
    ("path", "words"), [("short", "WebServer.NoAnswer: the web server on port 8080 broke"), ("quits", "exit status 6")]
)
def test_an_answer_that_a_web_server_breaks_off_is_an_error(
    daemon: RunningDaemon, web: str, path: str, words: str
) -> None:
    deploy(daemon, f"web-{path}", web, app_port=8080, network="none")
    with pytest.raises(http.client.IncompleteRead):
        daemon.request("GET", f"/run/web-{path}/{path}")
    after = daemon.request("GET", f"/run/web-{path}/again")
    assert (after.status, after.headers["x-sockd-cold"]) == (200, str(int(path == "quits")))
    log = json.dumps(daemon.logs(f"web-{path}"))
    assert words in log, log
    event = {"requestContext": {"http": {"method": "GET"}}, "rawPath": f"/{path}"}
    invoked = daemon.manage("POST", f"/functions/web-{path}/invoke", json.dumps(event).encode())
    assert invoked.json["errorType"] == words.partition(":")[0] or words in invoked.json["errorMessage"]


def test_a_web_server_that_does_not_listen_is_refused_by_its_deploy(daemon: RunningDaemon, web: str) -> None:
    assert deploy(daemon, "web-checked", web, app_port=8080, network="none", check=True)["is_app"]
    elsewhere = ["/server", "3000"]
    with pytest.raises(DeployFailed) as refused:
        deploy(
            daemon, "web-checked", web, app_port=8080, network="none", command=elsewhere, init_timeout_s=2, check=True
        )
    assert refused.value.type == "Deploy.VersionFailed" and "8080" in refused.value.message
    assert daemon.request("GET", "/run/web-checked/").status == 200


def test_a_server_that_may_start_late_is_waited_for_by_its_request(daemon: RunningDaemon, web: str) -> None:
    env = {"AWS_LWA_ASYNC_INIT": "true"}
    deploy(daemon, "web-late", web, app_port=8080, network="none", env=env, timeout_s=2, readiness_path="/silent")
    answer = daemon.request("GET", "/run/web-late/")
    assert (answer.status, answer.json["errorType"]) == (500, "WebServer.NotReady")
    assert answer.json["errorMessage"].endswith("raise timeout_s")


def test_a_web_server_that_ends_ends_its_sandbox(daemon: RunningDaemon, web: str) -> None:
    deploy(daemon, "web-ends", web, app_port=8080, network="none")
    ended = daemon.request("GET", "/run/web-ends/exit")
    assert (ended.status, ended.json["errorType"]) == (502, "Runtime.ExitError")
    assert daemon.request("GET", "/run/web-ends/again").status == 200
