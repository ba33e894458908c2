"""Services with an initscript, which fetches their state while their program starts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import READY, digest, engine_pid, fetching
from tests.daemon.running import Answer, RunningDaemon
from tests.daemon.services.test_services import log_of, row
from tests.support.cases import case

pytestmark = pytest.mark.root

STATE = b"s" * 300_000
SERVER = """
import http.server, os, sys
sys.path.insert(0, "/opt/sockd/storage_lib")
import sockd_initscript
state = bytes(sockd_initscript.link().recv_msg(0, 5000).view)
print("began with", len(state), "bytes", flush=True)
class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(state)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Requests).serve_forever()
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "none"
service = { port = 8080 }
"""


def test_a_program_begins_with_what_the_script_fetches_while_it_starts(daemon: RunningDaemon) -> None:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "state", STATE)
        endpoint = server.env()["AWS_ENDPOINT_URL_S3"].partition("//")[2]
        files: dict[str, str | bytes] = {"server.py": SERVER, "sockd.toml": TOML, "init.wasm": fetching("state")}
        script = {"wasm": "init.wasm", "args": "", "endpoints": [endpoint]}
        daemon.deploy("stateful", files, initscript=script, env=server.env())
        client.forget_requests()
        for _ in range(2):
            answer = daemon.request("GET", "/run/stateful/")
            assert (answer.status, answer.body) == (200, STATE), (log_of(daemon, "stateful"), row(daemon, "stateful"))
        (fetched,) = (record for record in client.requests() if record["method"] == "GET")
        assert fetched["path"] == "/data/state"


LARGE, CHANGED, OWN = b"a" * 9_000_000, b"b" * 9_000_000, b"its own"
HASHED = """
import hashlib, http.server, os, sys
sys.path.insert(0, "/opt/sockd/storage_lib")
import sockd_initscript
link, state = sockd_initscript.link(), open("own.txt", "rb").read()
try:
    state = link.recv_msg(0, 30).view if link is not None else state
except sockd_initscript.NoMessage:
    pass
class Requests(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/exit":
            os._exit(0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(hashlib.sha256(state).hexdigest().encode())
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Requests).serve_forever()
"""
"""Hashes what it began with: what the script has fetched, or else its own file, which stands for another way to the state."""


@contextlib.contextmanager
def state_of(daemon: RunningDaemon, name: str, script: bytes) -> Iterator[Client]:
    """A service whose script fetches the object `state`."""
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "state", LARGE)
        files: dict[str, str | bytes] = {"server.py": HASHED, "own.txt": OWN, "sockd.toml": TOML, "init.wasm": script}
        endpoint = server.env()["AWS_ENDPOINT_URL_S3"].partition("//")[2]
        settings = {"wasm": "init.wasm", "args": "", "endpoints": [endpoint]}
        waits = {"init_timeout_s": 60, "timeout_s": 60}
        daemon.deploy(name, files, initscript=settings, env=server.env(), memory_mb=256, **waits)
        client.forget_requests()
        yield client
        daemon.remove(name)


def first_answer(daemon: RunningDaemon, name: str, meanwhile: contextlib.AbstractContextManager[object]) -> str:
    """What a service that starts answers. Args: meanwhile: what happens when its request is under way."""
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(daemon.request("GET", f"/run/{name}/")))
    asking.start()
    with meanwhile:
        asking.join()
    (answer,) = answers
    assert answer.status == 200, (answer, log_of(daemon, name))
    return answer.body.decode()


def end_program(daemon: RunningDaemon, name: str) -> None:
    """Have the program end, and wait until the worker knows that it has."""
    daemon.request("GET", f"/run/{name}/exit")
    daemon.when(lambda: row(daemon, name)["failures"])


def test_the_log_says_what_a_script_could_not_have_or_how_it_failed(daemon: RunningDaemon) -> None:
    for name, script, words in (
        ("denied", fetching("state"), "initscript: engine: connect s3:: denied"),
        ("trapped", fetching("state", first="unreachable"), "initscript: trap"),
    ):
        files: dict[str, str | bytes] = {"server.py": HASHED, "own.txt": OWN, "sockd.toml": TOML, "init.wasm": script}
        daemon.deploy(name, files, initscript={"wasm": "init.wasm", "args": ""})
        assert first_answer(daemon, name, contextlib.nullcontext()) == digest(OWN)
        daemon.when(lambda name=name, words=words: words in log_of(daemon, name))  # type: ignore[misc]


@case("L13", "have the script of a service trap", expect="its program gets its state itself, never another one")
def test_a_program_whose_script_traps_gets_its_state_itself(daemon: RunningDaemon) -> None:
    with state_of(daemon, "trapping", fetching("state", first="unreachable")):
        assert first_answer(daemon, "trapping", contextlib.nullcontext()) == digest(OWN)
    with state_of(daemon, "trapping-late", fetching("state", then="unreachable")):
        assert first_answer(daemon, "trapping-late", contextlib.nullcontext()) in (digest(LARGE), digest(OWN))


@case("L14", "kill the engine while it fetches for a service", expect="as above; the next start has a script again")
def test_a_program_whose_engine_is_killed_gets_its_state_itself(
    daemon: RunningDaemon,
) -> None:
    with state_of(daemon, "orphaned", fetching("state")) as client:
        client.inject(bandwidth_bytes_s=2_000_000)

        @contextlib.contextmanager
        def killed() -> Iterator[None]:
            client.requests(at_least=1)
            os.kill(engine_pid(daemon), signal.SIGKILL)
            yield

        mark = daemon.mark
        assert first_answer(daemon, "orphaned", killed()) == digest(OWN)
        client.remove_faults()
        daemon.wait_line(READY, since=mark)
        end_program(daemon, "orphaned")
        assert first_answer(daemon, "orphaned", contextlib.nullcontext()) == digest(LARGE)


@case(
    "L15",
    "change the state of a service while its script fetches it",
    expect="the state before or after, never both mixed",
)
def test_a_state_that_changes_while_it_is_fetched_is_never_mixed(
    daemon: RunningDaemon,
) -> None:
    with state_of(daemon, "changing", fetching("state")) as client:
        client.inject(bandwidth_bytes_s=4_000_000)

        @contextlib.contextmanager
        def changed() -> Iterator[None]:
            client.requests(at_least=1)
            client.put("data", "state", CHANGED)
            yield

        assert first_answer(daemon, "changing", changed()) in {digest(each) for each in (LARGE, CHANGED, OWN)}
        client.remove_faults()
        end_program(daemon, "changing")
        assert first_answer(daemon, "changing", contextlib.nullcontext()) == digest(CHANGED)
