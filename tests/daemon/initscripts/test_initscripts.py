"""Initscripts of a whole daemon: what they fetch, what becomes of the function when they cannot, and who gets the error."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.gate import Gate
from tests.daemon.prefetching import READS, READY, digest, engine_pid, fetching, patient, reading, sources, spans, trace
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.test_runtime_api import archive
from tests.initscripts.guests import LOOP, module, module_of
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root

A, B, LARGE = b"a" * 100_000, b"b" * 700_000, b"c" * 3_000_000
OBJECTS = {"a": A, "b": B, "large": LARGE}
MEMORY_MB = 2048
WAITS = "from gate import wait\n" + READS.replace("def f(event):", "def f(event):\n    wait(event['gate'])")


@pytest.fixture(scope="module")
def config() -> str:
    return f"[sandbox]\nmemory_mb = {MEMORY_MB}\n"


@pytest.fixture(scope="module")
def server(ledger_of_module: None) -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        for key, data in OBJECTS.items():
            client.put("data", key, data)
        yield server


@pytest.fixture
def s3(server: S3Process) -> Iterator[Client]:
    with server.client() as client:
        client.forget_requests()
        yield client
        client.remove_faults()


@pytest.fixture
def deploy(daemon: RunningDaemon, server: S3Process) -> Any:
    """Deploy a function that finds the server, with a script."""

    def deploy(name: str, wasm: bytes, text: str = READS, *, script: dict[str, Any] | None = None, **more: Any) -> None:
        settings = {"storage": "sockd", "env": patient(server), "timeout_s": 15, **more}
        files = reading(text, init_wasm=wasm)
        daemon.deploy(name, files, initscript={"wasm": "init.wasm", **(script or {})}, **settings)

    return deploy


def gets(s3: Client) -> list[str]:
    return [record["path"] for record in s3.requests() if record["method"] == "GET"]


def test_the_function_reads_what_the_script_fetched_while_the_sandbox_started(
    daemon: RunningDaemon, deploy: Any, s3: Client, gate: Gate
) -> None:
    deploy("reads", fetching("a", "b"), f"from gate import wait\nwait({gate.port})\n" + READS)
    s3.inject("data/", delay_s=0.5, times=2)
    with in_background(lambda: daemon.run("reads", {"keys": ["a", "b"]})) as answered:
        gate.arrived()
        while not all(request["end_ns"] for request in s3.requests(at_least=2)):
            pass
        gate.open()
        answer = answered()
    assert answer.json == [digest(A), digest(B)]
    # The gate may have been a write of the function's: HEADs follow.
    requests = [record for record in s3.requests() if record["method"] == "GET"]
    assert sorted(gets(s3)) == ["/data/a", "/data/b"]
    shown = trace(daemon, answer)
    assert (shown["initscript"], shown["outcome"]) == ("exit", "ok")
    # The server's own clock says that both were asked for before the function was even imported, and one beside the other.
    (init,) = [span for span in spans(shown, "sandbox") if span["name"] == "init"]
    assert max(request["start_ns"] for request in requests) < init["end_ns"]
    assert requests[1]["start_ns"] < requests[0]["end_ns"]
    assert sources(shown) == ["region", "region"]
    assert shown["hidden_ns"] > 0.1e9 and shown["fetched_ns"] >= shown["hidden_ns"]
    # It works for the first request of a sandbox and no other.
    before = daemon.status()["initscripts"]["runs"]
    warm = daemon.run("reads", {"keys": ["a"]})
    assert warm.json == [digest(A)] and warm.headers["x-sockd-cold"] == "0"
    assert gets(s3)[2:] == ["/data/a"]
    assert trace(daemon, warm)["initscript"] is None
    assert daemon.status()["initscripts"]["runs"] == before


def test_an_engine_that_is_killed_in_the_middle_costs_nothing_but_the_time(
    daemon: RunningDaemon, deploy: Any, s3: Client, gate: Gate
) -> None:
    deploy("survives", fetching("a"))
    s3.inject("data/a", delay_s=30, times=1)
    daemon.wait_line(READY)
    mark, engine = daemon.mark, engine_pid(daemon)
    restarts = daemon.status()["initscripts"]["restarts"]
    with in_background(lambda: daemon.run("survives", {"keys": ["a"]})) as answered:
        s3.requests(at_least=1)
        os.kill(engine, signal.SIGKILL)
        answer = answered()
    assert answer.json == [digest(A)]
    shown = trace(daemon, answer)
    assert (shown["initscript"], shown["outcome"], spans(shown, "rpc")) == ("engine_died", "ok", [])
    daemon.wait_line(READY, since=mark)
    assert daemon.status()["initscripts"]["restarts"] == restarts + 1
    assert engine_pid(daemon) != engine
    # What it knew, the next one knows.
    deploy("survives", fetching("a"), WAITS)
    shown = behind_its_script(daemon, gate, "survives")
    assert (shown["initscript"], sources(shown)) == ("exit", ["region"])


def test_a_definition_outlives_the_engine(daemon: RunningDaemon, deploy: Any, gate: Gate) -> None:
    deploy("again", fetching("a"), WAITS, concurrency=1)
    daemon.wait_line(READY)
    mark = daemon.mark
    os.kill(engine_pid(daemon), signal.SIGKILL)
    daemon.wait_line(READY, since=mark)
    assert behind_its_script(daemon, gate, "again")["initscript"] == "exit"


def behind_its_script(daemon: RunningDaemon, gate: Gate, name: str) -> dict[str, Any]:
    """The trace of a call of a function that goes on when its script has ended; an answer that is quicker would cancel that."""
    with in_background(lambda: daemon.run(name, {"keys": ["a"], "gate": gate.port})) as answered:
        gate.arrived()
        while daemon.status()["initscripts"]["running"]:
            pass
        gate.open()
        answer = answered()
    assert answer.json == [digest(A)]
    return trace(daemon, answer)


@pytest.mark.parametrize("delay_s", [0, 0.3])
def test_a_script_may_call_the_launch_off(daemon: RunningDaemon, deploy: Any, s3: Client, delay_s: float) -> None:
    """At once, or while the function waits for it."""
    abort = "(call $abort_launch (i32.const 7) @text)"
    reported = "print('called')\n"
    text = READS.replace("def f(event):\n", f"def f(event):\n    {reported}")
    deploy("aborts", fetching("a", first="" if delay_s else abort, then=abort), text)
    s3.inject("data/a", delay_s=delay_s)
    before = daemon.status()["sandboxes"]
    answer = daemon.run("aborts", {"keys": ["b", "a"]})
    assert (answer.status, answer.json["errorType"]) == (500, "Initscript.LaunchAborted")
    assert answer.json["errorMessage"] == "the initscript aborted the launch with status 7: some text"
    assert answer.headers["x-sockd-cold"] == "1"
    shown = trace(daemon, answer)
    assert (shown["initscript"], shown["outcome"]) == ("abort", "Initscript.LaunchAborted")
    after = daemon.status()["sandboxes"]
    assert (after["idle"] + after["paused"]) <= (before["idle"] + before["paused"])
    assert 'reason="launch_aborted"' in daemon.request("GET", "/metrics").body.decode()


@pytest.mark.parametrize(
    ("body", "script", "outcome"),
    [
        ("unreachable", {}, "trap"),
        (LOOP, {"deadline_s": 0.2, "cpu_ms": 10_000}, "deadline"),
        ("(call $note (call $buf_read (i32.const 99) (i64.const 0) (i32.const 0) (i32.const 9)))", {}, "exit"),
        ("(drop (memory.grow (i32.const 400))) (i32.store (i32.const 20000000) (i32.const 1))", {}, None),
    ],
)
def test_whatever_a_script_does_the_function_answers(
    daemon: RunningDaemon, deploy: Any, body: str, script: dict[str, Any], outcome: str | None
) -> None:
    late = "import threading\nthreading.Event().wait(0.4)\n" if outcome == "deadline" else ""
    deploy("goes-on", module(body, notes=False), late + READS, script=script)
    answer = daemon.run("goes-on", {"keys": ["a"]})
    assert answer.json == [digest(A)]
    shown = trace(daemon, answer)
    assert shown["initscript"] in ((outcome,) if outcome else ("trap", "memory"))
    assert sources(shown) in ([], ["network"])


def test_a_script_that_does_nothing_runs_like_any_other(daemon: RunningDaemon, deploy: Any) -> None:
    for name, functions in (("idle", ["now_ns"]), ("able", ["now_ns", "abort_launch"])):
        deploy(name, module_of(functions, "(loop (br_if 0 (i64.eqz (call $now_ns))))"))
        answer = daemon.run(name, {"keys": ["a"]})
        assert answer.json == [digest(A)]
        shown = trace(daemon, answer)
        assert shown["initscript"] == "exit"


def test_a_sandbox_that_is_killed_takes_its_run_with_it(daemon: RunningDaemon, deploy: Any, s3: Client) -> None:
    deploy("killed", fetching("a"), timeout_s=0.3)
    s3.inject("data/a", delay_s=20)
    answer = daemon.run("killed", {"keys": ["a"]})
    assert (answer.status, answer.json["errorType"]) == (504, "Sandbox.Timedout")
    assert trace(daemon, answer)["initscript"] == "cancelled"
    assert daemon.status()["initscripts"]["running"] == 0


def test_two_sandboxes_at_once_have_two_runs(daemon: RunningDaemon, deploy: Any, gate: Gate, s3: Client) -> None:
    deploy("twice", fetching("a"), WAITS)
    with in_background(lambda: at_once(2, lambda n: daemon.run("twice", {"keys": ["a"], "gate": gate.port}))) as both:
        gate.arrived()
        gate.arrived()
        gate.open()
        answers = both()
    assert [answer.json for answer in answers] == [[digest(A)]] * 2
    assert {trace(daemon, answer)["initscript"] for answer in answers} == {"exit"}
    assert len({answer.headers["x-sockd-sandbox"] for answer in answers}) == 2
    assert gets(s3) == ["/data/a"] * 2


def test_a_function_without_network_has_a_script_without_one(daemon: RunningDaemon, deploy: Any, s3: Client) -> None:
    deploy("alone", fetching("a"), "def f(event): return 'here'", network="none")
    answer = daemon.run("alone")
    assert answer.json == "here"
    shown = trace(daemon, answer)
    assert shown["initscript"] in ("exit", "cancelled")  # whichever of the two was quicker
    assert spans(shown, "rpc") == []
    assert s3.requests() == []


def test_a_region_that_is_too_small_leaves_the_reads_to_the_network(
    daemon: RunningDaemon, deploy: Any, s3: Client
) -> None:
    deploy("small", fetching("large"), script={"region_mb": 1})
    answer = daemon.run("small", {"keys": ["large"]})
    assert answer.json == [digest(LARGE)]
    shown = trace(daemon, answer)
    (rpc,) = spans(shown, "rpc")
    assert "failed" in rpc["detail"]
    assert sources(shown) == ["network"]


def test_a_run_that_finds_no_memory_is_not_made(daemon: RunningDaemon, deploy: Any) -> None:
    deploy("huge", fetching("a"), script={"region_mb": MEMORY_MB, "memory_mb": 1024})
    before = daemon.status()["initscripts"]["runs"].get("no_memory", 0)
    answer = daemon.run("huge", {"keys": ["a"]})
    assert answer.json == [digest(A)]
    assert daemon.status()["initscripts"]["runs"]["no_memory"] == before + 1


def test_a_function_without_a_script_knows_nothing_of_them(daemon: RunningDaemon) -> None:
    before = daemon.status()["initscripts"]
    daemon.deploy("plain", "import os\ndef f(event): return sorted(os.environ), len(os.listdir('/proc/self/fd'))")
    names, fds = daemon.call("plain")
    assert not [name for name in names if "SOCKD" in name] and fds == 5
    assert daemon.status()["initscripts"]["runs"] == before["runs"]


def test_the_memory_of_a_run_comes_back_with_its_sandbox(daemon: RunningDaemon, deploy: Any) -> None:
    used = daemon.status()["memory"]["reserved_bytes"]
    deploy("brief", fetching("b"), memory_mb=64)
    assert daemon.run("brief", {"keys": ["b"]}).status == 200
    daemon.remove("brief")
    daemon.request("GET", "/metrics")
    while daemon.status()["memory"]["reserved_bytes"] > used + (16 << 20):  # a spare may have come meanwhile
        pass  # each a turn of the daemon's loop: the last process is waited for there


# -- deploying


@pytest.mark.parametrize(
    ("wasm", "words"),
    [
        (b"\0asm\1\0\0\0garbage", "malformed"),
        (b"not wasm", "not a WebAssembly binary"),
    ],
)
def test_a_module_that_can_never_run_is_refused_in_words(
    daemon: RunningDaemon, deploy: Any, wasm: bytes, words: str
) -> None:
    deploy("malformed", fetching("a"))
    with pytest.raises(DeployFailed) as caught:
        daemon.deploy_initscript("malformed", wasm)
    assert (caught.value.status, caught.value.type) == (400, "InvalidInitscriptException")
    assert words in caught.value.message


def test_one_that_is_too_large_is_refused_unread(daemon: RunningDaemon) -> None:
    wasm = b"\0asm\1\0\0\0" + bytes(1 << 20)
    with pytest.raises(DeployFailed, match="the limit is 1048576"):
        daemon.deploy_initscript("reads", wasm)
    with pytest.raises(DeployFailed, match="the limit is 1048576") as caught:
        daemon.deploy_with_initscript("reads", reading(), wasm)
    assert (caught.value.status, caught.value.type) == (400, "InvalidInitscriptException")


def test_an_unknown_import_is_named(daemon: RunningDaemon, deploy: Any) -> None:
    import wasmtime

    wasm = bytes(wasmtime.wat2wasm('(module (import "sockd_v1" "fork" (func)) (memory (export "memory") 1))'))
    with pytest.raises(DeployFailed) as caught:
        deploy("bad", wasm)
    assert "unknown import sockd_v1.fork" in caught.value.message
    assert daemon.manage("GET", "/functions/bad").status == 404


def test_a_script_without_a_file_is_refused_and_one_with_a_missing_file_too(daemon: RunningDaemon) -> None:
    for table, words in (({}, "no module was uploaded"), ({"wasm": "no.wasm"}, "no.wasm cannot be read")):
        with pytest.raises(DeployFailed) as caught:
            daemon.deploy("nofile", "def f(event): return 1", initscript=table)
        assert words in caught.value.message


def test_a_script_is_uploaded_alone_and_kept_by_the_deploys_that_speak_of_it(
    daemon: RunningDaemon, server: S3Process
) -> None:
    settings = {"storage": "sockd", "env": patient(server), "timeout_s": 15}
    first = daemon.deploy("alone2", reading(), **settings)
    assert first["initscript"] == ""
    wasm = fetching("a")
    second = daemon.deploy_initscript("alone2", wasm)
    assert second["initscript"] == hashlib.sha256(wasm).hexdigest()
    assert (second["version"], second["version_number"]) == (first["version"], 2)
    assert trace(daemon, daemon.run("alone2", {"keys": ["a"]}))["initscript"] == "exit"
    third = daemon.deploy("alone2", reading(x_py=""), initscript={}, **settings)
    assert third["initscript"] == second["initscript"]
    fourth = daemon.deploy("alone2", reading(), **settings)
    assert fourth["initscript"] == ""
    other = fetching("b")
    fifth = daemon.deploy_with_initscript("alone2", reading(), other, **settings)
    assert fifth["initscript"] == hashlib.sha256(other).hexdigest()


# -- recording


def test_a_recording_says_what_the_function_read(daemon: RunningDaemon, server: S3Process, s3: Client) -> None:
    """Also of a function that has its own storage module, as its library is ours for this one request."""
    daemon.deploy("recorded", reading(), env=server.env(), timeout_s=15)
    answer = daemon.manage("POST", "/functions/recorded/record", b'{"keys": ["b", "a"]}')
    assert answer.status == 200, answer.body
    assert answer.json["answer"] == [digest(B), digest(A)]
    assert answer.json["event"] == {"keys": ["b", "a"]}
    assert [read["rpc"] for read in answer.json["reads"]] == [
        ["s3.GetObject", "data", "b"],
        ["s3.GetObject", "data", "a"],
    ]
    assert {read["served"] for read in answer.json["reads"]} == {"network"}
    assert all(read["start_ns"] < read["end_ns"] for read in answer.json["reads"])
    assert daemon.run("recorded", {"keys": []}).status == 500  # without the recording there is no such module


def test_what_people_see_of_the_engine(daemon: RunningDaemon) -> None:
    shown = daemon.status()["initscripts"]
    assert shown["engine"] == "ready" and shown["functions"] > 0 and shown["memory_bytes"] > 0
    metrics = daemon.request("GET", "/metrics").body.decode()
    assert 'sockd_initscript_runs_total{outcome="exit"}' in metrics
    assert "sockd_initscript_prefetched_bytes_total" in metrics
    assert "sockd_initscript_engine_starts_total" in metrics


PROGRAM = """#!/usr/bin/python3
import http.client, json, os, stat
link = os.environ.get("SOCKD_INITSCRIPT_FD", "")
number, _, inode = link.partition(":")
found = os.fstat(int(number)) if link else None
is_link = bool(found) and stat.S_ISSOCK(found.st_mode) and found.st_ino == int(inode)
connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
base = "/2018-06-01/runtime/invocation/"
while True:
    connection.request("GET", base + "next")
    response = connection.getresponse()
    response.read()
    name = response.headers["Lambda-Runtime-Aws-Request-Id"]
    connection.request("POST", base + name + "/response", json.dumps([link != "", is_link]))
    connection.getresponse().read()
"""


@pytest.mark.parametrize("scripted", [True, False])
def test_a_program_inherits_its_link_and_finds_it_by_inode(daemon: RunningDaemon, scripted: bool) -> None:
    name = f"program-{scripted}".lower()
    daemon.deploy(name, archive(PROGRAM), runtime="provided")
    if scripted:
        daemon.deploy_initscript(name, fetching("a"))
    assert daemon.call(name, {}) == [scripted, scripted]


RECEIVES = """
sys.path.insert(0, "/opt/sockd/storage_lib")
import sockd_initscript
def received():
    try:
        return bytes(sockd_initscript.link().recv_msg(0, 10).view).decode()[:1]
    except sockd_initscript.NoMessage:
        return None
"""


def test_a_program_has_what_came_for_its_first_request_and_not_for_the_next(
    daemon: RunningDaemon, server: S3Process
) -> None:
    program = PROGRAM.replace("json, os, stat", "json, os, stat, sys").replace('[link != "", is_link]', "received()")
    program = program.replace("connection =", RECEIVES + "connection =", 1)
    daemon.deploy("program-receives", archive(program), runtime="provided", env=server.env())
    daemon.deploy_initscript("program-receives", fetching("a"))
    assert [daemon.call("program-receives", {}) for _ in range(2)] == ["a", None]
