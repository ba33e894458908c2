"""Services that run and do not answer as they should: asked for their health, and started anew."""

from __future__ import annotations

import re

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.services.test_services import log_of, row, wait_state
from tests.support.cases import case

pytestmark = pytest.mark.root

SERVER = """
import http.server, os, threading, uuid
token, never, state = uuid.uuid4().hex, threading.Event(), {"how": "well", "asked": 0, "pid": os.getpid()}
class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/become/")
        if path != self.path:
            state["how"] = path
        if self.path == "/health":
            state["asked"] += 1
            if state["how"] == "silent" or (state["how"] == "sometimes" and state["asked"] % 2):
                never.wait()
        failing = self.path == "/health" and state["how"] == "failing"
        body = f"{token} {state['asked']}".encode()
        self.send_response(500 if failing else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
Server(("127.0.0.1", int(os.environ["PORT"])), Requests).serve_forever()
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "none"
[service]
port = 8080
stop_s = 0.5
health_path = "/health"
health_s = 0.1
"""


def files(settings: str = "") -> dict[str, str]:
    return {"server.py": SERVER, "sockd.toml": TOML + settings}


def reported(daemon: RunningDaemon, path: str) -> tuple[str, int]:
    """The name of the program that answers, and how often it was asked for its health."""
    answer = daemon.request("GET", f"/run/{path}")
    assert answer.status == 200, answer
    token, asked = answer.body.decode().split()
    return token, int(asked)


@case(
    "L9",
    "have the program fail its health checks, or never answer them",
    expect="a new program serves; the reason is said",
)
@pytest.mark.parametrize(
    ("how", "why"), [("failing", "has status 500"), ("silent", "has no whole answer after 0.1 s|did not answer within")]
)
def test_a_program_that_is_not_healthy_is_started_anew_and_the_reason_is_said(
    daemon: RunningDaemon, how: str, why: str
) -> None:
    name = f"is-{how}"
    daemon.deploy(name, files())
    token, _ = reported(daemon, f"{name}/become/{how}")
    found = daemon.when(lambda: each if (each := row(daemon, name))["failures"] else None)
    assert re.search(rf"it is not healthy: GET /health on port 8080 .*({why})\)?, 3 times in a row", found["reason"])
    assert reported(daemon, f"{name}/")[0] != token, "the program that answers is a new one"
    assert row(daemon, name)["starts"] == 2
    daemon.when(lambda: "the service has ended: it is not healthy" in log_of(daemon, name))


def test_a_program_that_is_healthy_is_asked_and_left_alone(daemon: RunningDaemon) -> None:
    """Also one that misses every second answer: one alone may have met a pause of the host."""
    daemon.deploy("healthy", files())
    token, _ = reported(daemon, "healthy/become/sometimes")
    daemon.when(lambda: reported(daemon, "healthy/")[1] >= 12)
    assert reported(daemon, "healthy/")[0] == token and row(daemon, "healthy")["failures"] == 0


def test_being_asked_for_its_health_is_no_use_of_a_service(daemon: RunningDaemon) -> None:
    daemon.deploy("unused", files("idle_s = 0.5\nconnections = 1\n"))
    reported(daemon, "unused/")
    assert row(daemon, "unused")["connections"] == 0
    assert wait_state(daemon, "unused", "stopped")["failures"] == 0


def test_a_health_path_is_checked(daemon: RunningDaemon) -> None:
    with pytest.raises(DeployFailed, match=r"service\.health_path: must begin with a slash"):
        daemon.deploy("wrong", files() | {"sockd.toml": TOML.replace("/health", "health")})
