"""Services, programs that keep running: how they start, end and are replaced, and what is said of one that fails."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.images.test_images import upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.images.image_layouts import PYTHON, Files, python_files, write_layout

pytestmark = pytest.mark.root

SERVER = """
import http.server, json, os, signal, sys, threading, time, uuid
inherited = sorted(os.listdir("/proc/self/fd"))
token, released = uuid.uuid4().hex, threading.Event()
VERSION = "one"
def stop(number, frame):
    print("stopped by", signal.Signals(number).name, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        path = self.path.partition("?")[0]
        if path == "/exit":
            print("leaving", flush=True)
            os._exit(3)
        if path == "/eat":
            bytearray(512 << 20)
        if path == "/close":
            server.socket.close()
        if path == "/release":
            released.set()
        if path == "/orphan":
            if not os.fork():
                if not os.fork():
                    os._exit(0)
                os._exit(0)
            os.wait()
        if path in ("/hold", "/ticks"):
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for number in range(2 if path == "/hold" else 20):
                self.wfile.write(b"5\\r\\n" + b"%4d\\n" % number + b"\\r\\n")
                self.wfile.flush()
                released.wait(None if path == "/hold" else 0.1)
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        with open("/proc/self/status") as status:
            fields = dict(line.split(":\\t") for line in status if ":\\t" in line)
        reported = {"token": token, "inherited": inherited, "version": VERSION, "method": self.command, "path": self.path,
                "headers": dict(self.headers), "env": dict(os.environ), "cwd": os.getcwd(),
                "body": self.rfile.read(int(self.headers.get("content-length", 0))).decode(),
                "confined": [fields[name].strip() for name in ("CapEff", "Seccomp", "NoNewPrivs")],
                "processes": [each for each in os.listdir("/proc") if each.isdigit()]}
        data = json.dumps(reported).encode()
        self.send_response(404 if path == "/missing" else 200)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-own", "value")
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer
    def log_message(self, *args):
        pass
if os.environ.get("FAILS"):
    print("cannot go on", flush=True)
    sys.exit(7)
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
server = Server(("127.0.0.1", int(os.environ.get("AT", os.environ["PORT"]))), Requests)
server.serve_forever()
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "none"
[service]
port = 8080
"""


def files(settings: str = "", source: str = SERVER) -> dict[str, str]:
    """The code of a service. Args: settings: lines for [service]."""
    return {"server.py": source, "sockd.toml": TOML + settings}


def get(daemon: RunningDaemon, path: str) -> Any:
    """The answer of a service that must succeed."""
    answer = daemon.request("GET", f"/run/{path}")
    assert answer.status == 200, (answer, daemon.lines[-20:])
    return answer.json


def row(daemon: RunningDaemon, name: str) -> dict[str, Any]:
    """What `sockd ps` shows of a service."""
    (found,) = (each for each in daemon.manage("GET", "/services").json if each["name"] == name)
    return dict(found)


def wait_state(daemon: RunningDaemon, name: str, state: str) -> dict[str, Any]:
    """Wait until a service is in a state, and no program of it is ending."""
    return daemon.when(lambda: found if is_settled(found := row(daemon, name), state) else None)


def is_settled(found: dict[str, Any], state: str) -> bool:
    return found["state"] == state and not found["draining"]


def programs(daemon: RunningDaemon, word: str) -> list[int]:
    """The processes in the daemon's cgroups that have a word among their arguments."""
    found = []
    for pid in daemon.pids():
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def log_of(daemon: RunningDaemon, name: str) -> str:
    return "".join(record["text"] for record in daemon.logs(name))


@contextlib.contextmanager
def streaming(daemon: RunningDaemon, path: str) -> Iterator[http.client.HTTPResponse]:
    """An answer whose head and first piece have come."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    try:
        connection.request("GET", f"/run/{path}")
        response = connection.getresponse()
        assert response.read(5) == b"   0\n"
        yield response
    finally:
        connection.close()


def test_the_first_request_starts_a_service_and_later_ones_reach_the_same_program(daemon: RunningDaemon) -> None:
    daemon.deploy("plain", files())
    assert row(daemon, "plain")["state"] == "stopped"
    answer = daemon.request("PUT", "/run/plain/some/path?q=1", b"hello", {"x-sent": "yes"})
    reported = answer.json
    assert answer.status == 200 and answer.headers["x-own"] == "value"
    assert (reported["method"], reported["path"], reported["body"]) == ("PUT", "/some/path?q=1", "hello")
    assert reported["headers"]["x-sent"] == "yes" and reported["headers"]["x-forwarded-prefix"] == "/run/plain"
    assert reported["cwd"] == "/var/task" and reported["env"]["PORT"] == "8080"
    assert daemon.request("GET", "/run/plain/missing").status == 404
    assert daemon.request("HEAD", "/run/plain/").headers["content-length"].isdigit()
    assert get(daemon, "plain/")["token"] == reported["token"]
    found = row(daemon, "plain")
    assert (found["state"], found["starts"], found["connections"]) == ("running", 1, 0)


def test_a_service_serves_several_requests_at_once(daemon: RunningDaemon) -> None:
    daemon.deploy("several", files())
    with streaming(daemon, "several/hold") as first, streaming(daemon, "several/hold") as second:
        assert row(daemon, "several")["connections"] == 2
        get(daemon, "several/release")
        assert (first.read(), second.read()) == (b"   1\n", b"   1\n")


def test_more_connections_than_service_connections_are_refused(daemon: RunningDaemon) -> None:
    daemon.deploy("bounded", files("connections = 1\n"))
    with streaming(daemon, "bounded/hold"):
        assert daemon.request("GET", "/run/bounded/").status == 429
    assert daemon.when(lambda: daemon.request("GET", "/run/bounded/").status == 200)


def test_an_unused_service_is_stopped_and_one_with_a_connection_is_not(daemon: RunningDaemon) -> None:
    daemon.deploy("unused", files("idle_s = 0.2\n"))
    daemon.deploy("used", files("idle_s = 0.2\n"))
    with streaming(daemon, "used/hold") as held:
        token = get(daemon, "unused/")["token"]
        wait_state(daemon, "unused", "stopped")
        assert row(daemon, "used")["state"] == "running"
        get(daemon, "used/release")
        assert held.read() == b"   1\n"
    wait_state(daemon, "used", "stopped")
    daemon.when(lambda: "stopped by SIGTERM" in log_of(daemon, "unused"))
    assert get(daemon, "unused/")["token"] != token
    assert row(daemon, "unused")["failures"] == 0


def test_a_deploy_refuses_a_service_that_is_not_ready_and_says_where_it_listens(daemon: RunningDaemon) -> None:
    with pytest.raises(DeployFailed, match="listens on 9090") as failed:
        daemon.deploy("elsewhere", files(), env={"AT": "9090"}, init_timeout_s=2, check=True)
    assert "Service.NotReady" in failed.value.message
    with pytest.raises(DeployFailed, match="GET /missing on port 8080 has status 404"):
        daemon.deploy("elsewhere", files('ready_path = "/missing"\n'), init_timeout_s=2, check=True)
    with pytest.raises(DeployFailed, match="no-such-program does not exist"):
        daemon.deploy("elsewhere", files(), command=["no-such-program"], check=True)
    daemon.deploy("elsewhere", files('ready_path = "/found"\n'), check=True)
    get(daemon, "elsewhere/")


def test_a_new_version_takes_over_when_it_is_ready_and_the_old_one_ends_its_answers(daemon: RunningDaemon) -> None:
    daemon.deploy("rolling", files())
    with streaming(daemon, "rolling/ticks") as held:
        daemon.deploy("rolling", files(source=SERVER.replace('"one"', '"two"')))
        seen: list[str] = []

        def is_new() -> bool:
            seen.append(get(daemon, "rolling/")["version"])
            return seen[-1] == "two"

        daemon.when(is_new)
        assert row(daemon, "rolling")["draining"] == 1
        assert held.read() == b"".join(b"%4d\n" % number for number in range(1, 20))
    assert set(seen[:-1]) <= {"one"}, "each request was answered, by the old version until the new one was ready"
    found = wait_state(daemon, "rolling", "running")
    assert (found["starts"], found["failures"], found["version"]) == (2, 0, "$LATEST")


def test_a_connection_of_an_old_version_is_cut_after_drain_s(daemon: RunningDaemon) -> None:
    daemon.deploy("cut", files("drain_s = 0.2\n"))
    with streaming(daemon, "cut/hold") as held:
        daemon.deploy("cut", files("drain_s = 0.2\n", SERVER.replace('"one"', '"two"')))
        with pytest.raises(http.client.IncompleteRead):
            held.read()
    assert get(daemon, "cut/")["version"] == "two"


def test_a_disabled_service_is_stopped_and_refuses_requests(daemon: RunningDaemon) -> None:
    daemon.deploy("disabled", files("min = 1\n"))
    wait_state(daemon, "disabled", "running")
    daemon.manage("PATCH", "/functions/disabled/settings", json.dumps({"concurrency": 0}))
    wait_state(daemon, "disabled", "stopped")
    assert daemon.request("GET", "/run/disabled/").status == 429


def test_a_service_takes_no_events_and_has_no_versions(daemon: RunningDaemon) -> None:
    daemon.deploy("no-events", files())
    answer = daemon.manage("POST", "/functions/no-events/invoke", b"{}")
    assert (answer.status, answer.json["errorType"]) == (400, "InvalidParameterValueException")
    assert "is a service" in answer.json["errorMessage"]
    daemon.manage("POST", "/functions/no-events/versions", b"{}")
    assert "is a service" in daemon.request("GET", "/run/no-events:1/").json["errorMessage"]


def test_a_service_of_an_image_runs_its_command(daemon: RunningDaemon, tmp_path: Path) -> None:
    server = Files(executable={"server": f"#!{PYTHON}\n{SERVER}"})
    layers: list[Files | bytes] = [python_files().tar(), server]
    config = {"Cmd": ["/server"], "Env": ["PATH=/opt/python/bin"], "ExposedPorts": {"9000/tcp": {}}}
    write_layout(tmp_path, layers, config)
    image = upload(daemon, tmp_path)
    service = {"port": 9000, "ready_path": "/"}
    daemon.deploy("imaged", {}, kind="service", image=image, network="none", service=service, check=True)
    reported = get(daemon, "imaged/path")
    assert (reported["path"], reported["env"]["PORT"], reported["confined"][0]) == ("/path", "9000", "0000000000000000")


@pytest.mark.skipif(shutil.which("/usr/sbin/haproxy") is None, reason="needs Debian's haproxy")
def test_haproxy_of_debian_runs_as_a_service(daemon: RunningDaemon) -> None:
    config = """
    defaults
      mode http
      timeout client 10s
    frontend hello
      bind 127.0.0.1:8000
      http-request return status 200 content-type text/plain string "hello from haproxy"
    """
    toml = """
    kind = "service"
    command = ["/usr/sbin/haproxy", "-f", "haproxy.cfg"]
    network = "none"
    memory_mb = 256
    service = { port = 8000, ready_path = "/" }
    """
    daemon.deploy("haproxy", {"haproxy.cfg": textwrap.dedent(config), "sockd.toml": toml}, check=True)
    answer = daemon.request("GET", "/run/haproxy/")
    assert (answer.status, answer.body) == (200, b"hello from haproxy")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": "host"}, "the free port of the host that the variable PORT names"),
        ({"service": {"port": 0}}, "service.port: must be set"),
        ({"service": {"port": 65536}}, "service.port = 65536: must be between 0 and 65535"),
        ({"service": {"port": 80, "ready_path": "x"}}, "service.ready_path"),
        ({"service": {"prot": 80}}, "service.prot"),
        ({"kind": "function"}, 'goes with kind = "service"'),
        ({"runtime": "python"}, 'runtime = "python"'),
        ({"runtime": "wasm"}, "its host is its program"),
        ({"snapshot": True}, "snapshot: a service has none"),
        ({"command": []}, "must begin with a program"),
    ],
)
def test_settings_that_a_service_cannot_have_are_refused(
    daemon: RunningDaemon, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeployFailed) as failed:
        daemon.deploy("wrong", files(), **settings)
    assert failed.value.type == "InvalidParameterValueException" and words in failed.value.message


def test_a_service_without_a_port_or_a_program_is_refused(daemon: RunningDaemon) -> None:
    with pytest.raises(DeployFailed, match=r"needs a table.*it may be empty.*port = 8080"):
        daemon.deploy("lacking", {"sockd.toml": 'kind = "service"\nnetwork = "none"\n'})
    with pytest.raises(DeployFailed, match="needs a program"):
        daemon.deploy("lacking", {"sockd.toml": TOML.replace("command", "#")})
