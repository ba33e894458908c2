"""Components for wasi:http as services: each request is a fresh instance's, and several run at once."""

from __future__ import annotations

import concurrent.futures
import http.client
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime

from sockd_zygote import wasm_host
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.services.test_published_services import port
from tests.daemon.services.test_services import programs, row
from tests.support.cases import case
from tests.support.wasi_http_component import component
from tests.support.wasm_modules import COMMAND

pytestmark = pytest.mark.root

__all__ = ["port"]

TOML = """
kind = "service"
runtime = "wasm"
network = "none"
memory_mb = 128
timeout_s = 2
[service]
port = 8080
[env]
GREETING = "hello"
"""


@pytest.fixture(scope="module")
def served(daemon: RunningDaemon) -> Iterator[str]:
    """A deployed component."""
    if not wasm_host.build():
        pytest.skip("needs the host of components: make wasm-host")
    daemon.deploy("web", {"fn.wasm": component(), "sockd.toml": TOML}, check=True)
    yield "web"
    daemon.remove("web")


def logged(daemon: RunningDaemon, words: str) -> bool:
    return any(words in record["text"] for record in daemon.logs("web"))


def ask(daemon: RunningDaemon, path: str) -> tuple[int, str]:
    answer = daemon.request("GET", f"/run/web/{path}")
    return answer.status, answer.body.decode()


def test_a_request_reaches_the_component_and_its_answer_the_client(daemon: RunningDaemon, served: str) -> None:
    answer = daemon.request("POST", "/run/web/echo?a=b", b"body" * 50_000, {"x-own": "mine"})
    assert (answer.status, answer.headers["x-from"]) == (201, "a component")
    assert answer.body == b"POST mine " + b"body" * 50_000
    assert ask(daemon, "elsewhere") == (404, "")


def test_each_request_has_an_instance_of_its_own(daemon: RunningDaemon, served: str) -> None:
    assert [ask(daemon, "count") for _ in range(3)] == [(200, "1")] * 3


def test_a_guest_sees_its_code_and_tmp_and_nothing_else(daemon: RunningDaemon, served: str) -> None:
    assert ask(daemon, "sees") == (200, "true false true hello")
    assert daemon.when(lambda: any("a line of the log" in record["text"] for record in daemon.logs("web")))


def test_an_answer_comes_piece_by_piece(daemon: RunningDaemon, served: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.request("GET", "/run/web/pieces")
    response = connection.getresponse()
    came = []
    while piece := response.read1():
        came.append((piece.decode(), time.monotonic()))
    connection.close()
    assert "".join(piece for piece, _ in came) == "onetwothree"
    assert came[-1][1] - came[0][1] > 0.25, "it came at once"


def test_a_body_is_answered_while_it_comes(daemon: RunningDaemon, port: int) -> None:
    if not wasm_host.build():
        pytest.skip("needs the host of components: make wasm-host")
    daemon.deploy("streams", {"fn.wasm": component(), "sockd.toml": TOML.replace("8080", f"8080\npublish = {port}")})
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client, client.makefile("rb") as answer:
        client.sendall(b"POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"one", b"two", b"three"):
            client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            while answer.readline() != piece + b"\r\n":
                pass
        client.sendall(b"0\r\n\r\n")
        assert b"0\r\n" in (answer.readline(), answer.readline())
    daemon.remove("streams")


def test_guests_that_compute_or_wait_delay_no_other_and_end_in_time(daemon: RunningDaemon, served: str) -> None:
    paths = ("spin", "spin", "spin", "sleep")
    with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
        others = [pool.submit(daemon.request, "GET", f"/run/web/{path}") for path in paths]
        daemon.when(lambda: row(daemon, "web")["connections"] == len(paths))
        assert [ask(daemon, "count") for _ in range(4)] == [(200, "1")] * 4
        assert not any(other.done() for other in others), "it waited for them"
        assert {other.result().status for other in others} == {504}
    assert daemon.when(lambda: logged(daemon, "the guest has taken more than 1.9 s"))
    assert logged(daemon, "wasm backtrace"), "where the guest computed"


@pytest.mark.parametrize(("path", "words"), [("trap", "a trap on purpose"), ("none", "without an answer")])
def test_a_guest_that_fails_is_a_500_and_the_next_request_is_served(
    daemon: RunningDaemon, served: str, path: str, words: str
) -> None:
    assert ask(daemon, path)[0] == 500
    assert daemon.when(lambda: logged(daemon, words))
    assert ask(daemon, "count") == (200, "1")


@pytest.mark.parametrize("way", ["trap", "spin"])
def test_the_body_of_a_guest_that_fails_breaks_off(daemon: RunningDaemon, served: str, way: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.request("GET", f"/run/web/part?{way}")
    response = connection.getresponse()
    assert (response.status, response.read(6)) == (200, b"a part")
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    connection.close()


def test_the_memory_of_all_guests_ends_below_that_of_the_sandbox(daemon: RunningDaemon, served: str) -> None:
    status, text = ask(daemon, "memory")
    assert status == 200 and 32 < int(text) < 128 - wasm_host.HOST_MB
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: ask(daemon, "memory?hold"), range(3)))
    assert {status for status, _ in answers} == {200}
    assert row(daemon, "web")["failures"] == 0


def test_a_guest_asks_another_server(daemon: RunningDaemon, served: str) -> None:
    assert ask(daemon, "fetch") == (200, "1")


@case("V4", "look for rights of the host of components", expect="no capability, seccomp, a uid of its own")
def test_the_host_is_confined_as_any_other_program(daemon: RunningDaemon, served: str) -> None:
    assert ask(daemon, "count") == (200, "1")
    found = programs(daemon, wasm_host.IN_SANDBOX)
    assert found
    for pid in found:
        lines = [line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        status = {words[0]: words[-1] for words in lines}
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
        assert status["Uid"].split()[0] != "0"
        assert os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user")


def test_compiled_code_of_an_archive_is_left_out_of_a_service(daemon: RunningDaemon, served: str) -> None:
    forged = wasm_host.compiled_path("fn.wasm", wasm_host.build())
    daemon.deploy("forged", {"fn.wasm": component(), forged: b"\x7fELF forged", "sockd.toml": TOML}, check=True)
    assert daemon.request("GET", "/run/forged/count").body == b"1"
    found = [path.stat() for path in (daemon.state / "code").rglob(forged)]
    assert found and all(each.st_size > 1000 and stat.S_IMODE(each.st_mode) == 0o444 for each in found)
    daemon.remove("forged")


def of_world(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(f"(component {text})"))


@pytest.mark.parametrize(
    ("wasm", "words"),
    [
        (bytes(COMMAND), r"is a core module, and a service is a component"),
        (of_world('(instance $i) (export "wasi:cli/run@0.2.3" (instance $i))'), r"exports wasi:cli/run@0\.2\.3, and"),
        (of_world('(import "fermyon:spin/redis@2.0.0" (instance))'), r"imports fermyon:spin/redis@2\.0\.0, which"),
        (
            of_world('(import "wasi:keyvalue/store@0.2.0-draft" (instance))'),
            r"imports wasi:keyvalue/store@0\.2\.0-draft, which",
        ),
        (of_world('(instance $i) (export "wasi:http/handler@0.3.0" (instance $i))'), r"is for WASI 0\.3"),
    ],
    ids=["core module", "command", "Spin's own", "key-value", "newer WASI"],
)
def test_what_is_no_component_for_http_is_refused(daemon: RunningDaemon, served: str, wasm: bytes, words: str) -> None:
    with pytest.raises(DeployFailed, match=rf"fn\.wasm cannot run: it {words}"):
        daemon.deploy("refused", {"fn.wasm": wasm, "sockd.toml": TOML})
