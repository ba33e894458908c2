"""/run of a real daemon: every status and error type, the headers, the sizes, the shapes of a body."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.running import Answer, RunningDaemon
from tests.support.measured import at_least_once

MAX = 6 << 20
ECHO = "def f(event): return event"


@pytest.fixture(scope="module", autouse=True)
def echo(daemon: RunningDaemon) -> None:
    daemon.deploy("echo", ECHO)


def kind(answer: Answer) -> tuple[int, str]:
    error = answer.json
    assert error["requestId"] == answer.headers["x-amzn-requestid"]
    return answer.status, error["errorType"]


def words(answer: Answer) -> str:
    message: str = answer.json["errorMessage"]
    return message


# -- what comes in


@pytest.mark.parametrize("body", [b"{", b"nul", b"\xff\xfe", b"{'a': 1}", b"1 2", b"[" * 100_000])
def test_an_event_that_is_not_json_is_a_400(daemon: RunningDaemon, body: bytes) -> None:
    answer = daemon.request("POST", "/run/echo", body)
    assert kind(answer) == (400, "InvalidRequestContentException")
    assert daemon.call("echo", 1) == 1


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b""), ("POST", b"{}")])
def test_no_body_is_the_empty_event(daemon: RunningDaemon, method: str, body: bytes | None) -> None:
    assert daemon.request(method, "/run/echo", body).json == {}


def test_an_unknown_function_is_a_404_that_says_how_to_list_them(daemon: RunningDaemon) -> None:
    answer = daemon.run("nobody")
    assert kind(answer) == (404, "ResourceNotFoundException")
    assert "sockd ls" in words(answer)


@pytest.mark.parametrize("name", ["..", "a%2fb", "%C3%BC", "x" * 65, ""])
def test_what_cannot_be_a_name_is_refused(daemon: RunningDaemon, name: str) -> None:
    assert kind(daemon.request("POST", f"/run/{name}", b"{}"))[0] in (400, 404)


def test_a_payload_of_six_megabytes_goes_in_and_out_and_one_byte_more_does_neither(daemon: RunningDaemon) -> None:
    largest = json.dumps("x" * (MAX - 2)).encode()
    assert len(largest) == MAX
    answer = daemon.request("POST", "/run/echo", largest)
    assert answer.status == 200 and answer.body == largest
    refused = daemon.request("POST", "/run/echo", largest + b" ")
    assert kind(refused) == (413, "RequestTooLargeException")
    daemon.deploy("makes", "def f(event): return 'x' * event")
    assert len(daemon.run("makes", MAX - 2).body) == MAX
    answer = daemon.run("makes", MAX - 1)
    assert kind(answer) == (413, "Function.ResponseSizeTooLarge")
    again = daemon.run("makes", 1)
    assert again.status == 200 and again.headers["x-sockd-cold"] == "0"


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_a_chunked_body_is_read_whole_and_bounded(daemon: RunningDaemon) -> None:
    """OpenLambda weakness 6: chunked bodies were dropped, and the function ran with {}."""
    body = json.dumps(list(range(20_000))).encode()
    answer = daemon.request("POST", "/run/echo", chunks(body, 999), encode_chunked=True)
    assert answer.json == list(range(20_000))
    with socket.create_connection(("127.0.0.1", daemon.port)) as client:
        head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head)
        try:
            for _ in range(7):
                client.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it had seen enough
        assert b" 413 " in client.recv(4096).split(b"\r\n")[0] + b" "


# -- what goes out


def test_an_answer_says_whether_it_was_cold_its_sandbox_and_where_the_time_went(daemon: RunningDaemon) -> None:
    daemon.deploy("timed", "import socket\ndef f(event):\n return sum(i * i for i in range(event))")
    cold, warm = daemon.run("timed", 0), daemon.run("timed", 300_000)
    assert cold.headers["x-sockd-cold"] == "1" and warm.headers["x-sockd-cold"] == "0"
    assert cold.headers["x-sockd-origin"] in ("spare", "zygote")
    assert warm.headers["x-sockd-origin"] in ("warm", "paused")
    assert cold.headers["x-sockd-sandbox"] == warm.headers["x-sockd-sandbox"]
    assert set(cold.timing) == set(warm.timing) == {"queue", "setup", "init", "exec"}
    assert cold.timing["setup"] > 0 and cold.timing["init"] > 0
    assert warm.timing["init"] == 0
    # The quickest: any one of them may have had to wait for a processor.
    idle = [daemon.run("timed", 0).timing["exec"] for _ in range(4)]
    assert warm.timing["exec"] > 5 > min(cold.timing["exec"], *idle)
    for answer in (cold, warm):
        assert uuid.UUID(answer.headers["x-amzn-requestid"]).version == 4
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)
    assert cold.headers["x-amzn-requestid"] != warm.headers["x-amzn-requestid"]


def test_the_pages_next_to_run_answer(daemon: RunningDaemon) -> None:
    daemon.call("echo", 1)
    assert daemon.request("GET", "/healthz").json == {"status": "ok"}
    status = daemon.request("GET", "/status").json
    assert status["functions"] >= 1 and status["pid"] == daemon.pid and status["url"] == daemon.url
    assert status["sandboxes"]["idle"] + status["sandboxes"]["paused"] >= 1
    assert status["memory"]["reserved_bytes"] > 0
    metrics = daemon.request("GET", "/metrics").body.decode()
    assert 'faas_name="echo"' in metrics
    assert str(daemon.state) not in metrics + json.dumps(status)


# -- what goes wrong inside


@pytest.mark.parametrize(
    ("code", "words_"),
    [
        ("import sys\ndef f(event): sys.exit(event)", "exit"),
        ("import os\ndef f(event): os._exit(event or 0)", "exit"),
        ("import ctypes\ndef f(event): ctypes.string_at(0)", "segmentation fault"),
        ("import os\ndef f(event): os.abort()", "signal"),
        ("import os\ndef f(event): os.closerange(3, 99)", ""),
        ("import sys\nsys.exit(3)\ndef f(event): pass", "3"),
        ("import os\nos._exit(4)\ndef f(event): pass", "4"),
        ("raise SystemExit\ndef f(event): pass", ""),
    ],
)
def test_a_handler_that_ends_its_process_is_a_502_that_names_no_host_path(
    daemon: RunningDaemon, code: str, words_: str
) -> None:
    """OpenLambda weakness 7: the client got a dump of host paths, cgroup names and pids."""
    daemon.deploy("ends", code)
    for _ in range(2):
        answer = daemon.run("ends", 7)
        assert kind(answer) == (502, "Runtime.ExitError")
        assert words_ in words(answer)
        for secret in (str(daemon.state), "/tmp/", "cgroup", "zygote", "sockd", "Traceback"):
            assert secret not in answer.body.decode(), answer.body
    assert daemon.call("echo", "on") == "on"


def test_a_handler_is_the_init_of_its_pid_namespace_whose_own_signals_do_not_end_it(daemon: RunningDaemon) -> None:
    """pid_namespaces(7): an init gets from its own namespace only the signals that it has a handler for."""
    daemon.deploy(
        "itself", "import os, signal\ndef f(event):\n os.kill(os.getpid(), signal.SIGKILL)\n return os.getpid()"
    )
    assert daemon.call("itself") == 1


def test_a_memory_hog_learns_its_limit_and_its_peak(daemon: RunningDaemon) -> None:
    daemon.deploy("hog", "def f(event):\n x = bytearray(event << 20)\n return len(x)", memory_mb=64)
    assert daemon.call("hog", 8) == 8 << 20
    answer = daemon.run("hog", 300)
    assert kind(answer) == (502, "Sandbox.OutOfMemory")
    assert "limit 64 MB" in words(answer) and "memory_mb" in words(answer)
    peak = int(words(answer).split("peak ")[1].split(" MB")[0])
    assert 55 <= peak <= 64
    assert daemon.call("hog", 8) == 8 << 20


def test_a_child_process_that_is_out_of_memory_is_the_function_s_own_affair(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "hogchild",
        "import subprocess, sys\n"
        "def f(event):\n"
        "    return subprocess.run([sys.executable, '-c', 'bytearray(300 << 20)']).returncode\n",
        memory_mb=96,
        timeout_s=20,
    )
    answer = daemon.run("hogchild")
    assert (answer.status, answer.body) == (200, b"-9") or kind(answer) == (502, "Sandbox.OutOfMemory")


@pytest.mark.parametrize(
    "code",
    [
        "def f(event):\n while True: pass",
        "import signal, time\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "def f(event):\n while True: time.sleep(100)",
        "import threading\n"
        "def f(event):\n threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\n threading.Event().wait()",
        "import asyncio\nasync def f(event): await asyncio.Event().wait()",
    ],
)
def test_a_timeout_is_a_504_within_a_tenth_of_a_second_of_the_deadline(daemon: RunningDaemon, code: str) -> None:
    daemon.deploy("slow", code, timeout_s=0.3)
    answer = daemon.run("slow")
    assert kind(answer) == (504, "Sandbox.Timedout")
    assert words(answer) == "Task timed out after 0.30 seconds (timeout_s)"


def test_the_time_of_a_timeout_is_kept(daemon: RunningDaemon) -> None:
    daemon.deploy("sleeps", "import threading\ndef f(event):\n if event: threading.Event().wait()", timeout_s=1)
    daemon.call("sleeps", 0)

    def late() -> float:
        started = time.monotonic()
        assert daemon.run("sleeps", 1).status == 504
        late = time.monotonic() - started - 1
        daemon.call("sleeps", 0)
        assert late >= 0
        return late

    at_least_once(late, lambda late: late < 0.1, tries=10)


def test_an_import_that_hangs_is_a_504_of_the_init(daemon: RunningDaemon) -> None:
    daemon.deploy("hangs", "import threading\nthreading.Event().wait()\ndef f(event): pass", init_timeout_s=0.3)
    answer = daemon.run("hangs")
    assert kind(answer) == (504, "Sandbox.Timedout")
    assert "Init timed out" in words(answer)


def test_a_function_that_does_not_fit_the_worker_is_a_503(daemon: RunningDaemon) -> None:
    total_mb = daemon.status()["memory"]["total_bytes"] >> 20
    if total_mb >= 10240:
        daemon.deploy("fits", ECHO, memory_mb=10240)
        assert daemon.call("fits", 1) == 1
    else:
        daemon.deploy("giant", ECHO, memory_mb=10240)
        answer = daemon.run("giant", 1)
        assert kind(answer) == (503, "ServiceUnavailableException")
        assert "10240 MB" in words(answer)


def test_more_than_concurrency_and_queue_is_a_429_with_retry_after(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy(
        "narrow",
        WAITS,
        concurrency=1,
        queue_depth=1,
        timeout_s=30,
    )
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(daemon.run, "narrow", gate.port) for _ in range(5)]
        ended = as_completed(calls, timeout=20)
        refused = [next(ended).result() for _ in range(3)]
        gate.arrived()
        assert gate.nobody_comes()
        gate.open()
        gate.arrived()
        gate.open()
        assert [call.result().json for call in ended] == ["go", "go"]
    for answer in refused:
        assert kind(answer) == (429, "TooManyRequestsException")
        assert int(answer.headers["retry-after"]) >= 1
