"""J: the initscript engine and the store behind it fail, lag and lie; the function reads what the store has, or an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.gate import Gate
from tests.daemon.prefetching import READS, READY, digest, engine_pid, fetching, patient, reading, sources, trace
from tests.initscripts.guests import LOOP, module
from tests.support.cases import Happened, case
from tests.support.emulated import counts_sockets
from tests.support.private_worker import Answer, PrivateWorker
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root

A, B, LARGE = b"a" * 100_000, b"b" * 700_000, b"c" * 3_000_000
RIGHT = "the function reads what the store has"
ENDS = (
    "import os\nimport hashlib, storage\ndef f(event):\n    if 'end' in event: os._exit(0)\n"
    + READS.partition("def f(event):\n")[2]
)
"""READS, whose process ends if the event says so: the next request is a cold start again."""
LATE = "import threading\nthreading.Event().wait({})\n"
"""Before a function: its import takes so long, in s."""

Deploy = Callable[..., None]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        yield server


@pytest.fixture
def s3(server: S3Process, worker: PrivateWorker) -> Iterator[Client]:
    with server.client() as client:
        for key, data in (("a", A), ("b", B), ("large", LARGE)):
            client.put("data", key, data)
        client.forget_requests()
        yield client
        client.remove_faults()


@pytest.fixture
def deploy(worker: PrivateWorker, server: S3Process, s3: Client) -> Deploy:
    """Deploy a function that reads the event's keys, with a script (none: without)."""

    def deploy(name: str, wasm: bytes | None, text: str = READS, *, script: object = None, **more: Any) -> None:
        settings: dict[str, Any] = {"storage": "sockd", "env": patient(server), "timeout_s": 10, **more}
        files = reading(text)
        if wasm is not None:
            files["init.wasm"] = wasm
            settings["initscript"] = {"wasm": "init.wasm", **(script if isinstance(script, dict) else {})}
        worker.deploy(name, files, **settings)

    return deploy


def served(worker: PrivateWorker, answer: Any) -> list[str]:
    """Where each read of a request came from: "region" or "network"."""
    return sources(trace(worker.daemon, answer))


def read(worker: PrivateWorker, name: str, *keys: str) -> tuple[Answer, list[str]]:
    answer = worker.invoke(name, {"keys": list(keys)})
    return answer, served(worker, answer)


@case("J1", "the engine is killed in the middle of an RPC", expect=f"{RIGHT}; the next engine knows what this one knew")
def test_the_engine_is_killed(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"), ENDS)
    assert worker.call("f", {"keys": ["a"]}) == [digest(A)]  # now there is an engine
    end_process(worker, "f")
    s3.inject("data/a", delay_s=30, times=1)
    s3.forget_requests()
    mark = worker.daemon.mark
    with in_background(lambda: worker.invoke("f", {"keys": ["a"]})) as answered:
        s3.requests(at_least=1)
        os.kill(engine_pid(worker.daemon), signal.SIGKILL)
        answer = answered()
    assert answer.json == [digest(A)]
    worker.daemon.wait_line(READY, since=mark)
    end_process(worker, "f")
    after, where = read(worker, "f", "a")
    assert (after.json, where) == ([digest(A)], ["region"])
    happened(f"answered in {answer.ms:.0f} ms by the network; afterwards from the {where[0]}")


@case("J2", "S3 answers slowly, and too slowly", expect="the function waits for what is on its way, until its deadline")
def test_a_slow_store(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"))
    s3.inject("data/a", delay_s=0.3, times=1)
    answer, where = read(worker, "f", "a")
    assert (answer.json, where) == ([digest(A)], ["region"])
    deploy("f", fetching("a"), READS + "\n", timeout_s=0.4)
    s3.inject("data/a", delay_s=20)
    late = worker.invoke("f", {"keys": ["a"]})
    assert (late.status, late.error) == (504, "Sandbox.Timedout")
    happened(f"{answer.ms:.0f} ms from the {where[0]}; then {late.error} after {late.ms:.0f} ms of 400")


def end_process(worker: PrivateWorker, name: str) -> None:
    """The next request of a function is one that its script runs for."""
    ended = worker.invoke(name, {"end": True})
    assert ended.error == "Runtime.ExitError", ended


FAULTS: dict[str, dict[str, Any]] = {
    "500": {"status": 500},
    "503": {"status": 503},
    "a truncated body": {"truncate_after": 1000},
    "a wrong length": {"wrong_length": 77},
    "an end after the headers": {"die_after_headers": True},
    "a reset": {"die_after_headers": True, "reset": True},
}


@case("J3", "S3 answers the engine with 500, 503, half a body, a wrong length, no body, a reset", expect=RIGHT)
def test_a_wrong_answer_to_the_engine(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"), LATE.format(0.05) + ENDS)
    for did, fault in FAULTS.items():
        end_process(worker, "f")
        s3.inject("data/a", times=1, **fault)
        answer = worker.invoke("f", {"keys": ["a"]})
        assert answer.json == [digest(A)], did
        happened(f"{did}: from the {served(worker, answer)[0]}")
        s3.remove_faults()


@case(
    "J4",
    "S3 answers everybody like that, or is not there",
    expect="the function's own error, soon; never half an object",
)
def test_a_wrong_answer_to_all(
    worker: PrivateWorker, deploy: Deploy, s3: Client, server: S3Process, happened: Happened
) -> None:
    deploy("f", fetching("a"), ENDS)
    for did, fault in FAULTS.items():
        end_process(worker, "f")
        s3.inject("data/a", **fault)
        answer = worker.invoke("f", {"keys": ["a"]})
        assert answer.status == 500 and answer.error, (did, answer)
        happened(f"{did}: {answer.error}")
        s3.remove_faults()
    deploy("f", fetching("a"), ENDS, env={**patient(server), "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"})
    answer = worker.invoke("f", {"keys": ["a"]})
    assert answer.status == 500 and answer.error == "ConnectionRefusedError", answer
    happened(f"nobody there: {answer.error}")


@case("J5", "the script is ahead of the function, and behind it", expect=RIGHT, default=False)
def test_ahead_and_behind(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a", "b"), LATE.format(0.2) + READS)
    answer, ahead = read(worker, "f", "a", "b")
    assert (answer.json, ahead) == ([digest(A), digest(B)], ["region", "region"])
    spin = "(loop $l (local.set $x (i64.add (local.get $x) (i64.const 1))) (br_if $l (i64.lt_u (local.get $x) (i64.const {n}))))"
    deploy("f", fetching("a", "b", first=spin.replace("{n}", str(10**9))))
    answer, behind = read(worker, "f", "a", "b")
    assert answer.json == [digest(A), digest(B)]
    happened(f"ahead: {', '.join(ahead)}; behind: {', '.join(behind)}")


@case(
    "J6", "the script fetches in another order than the function reads, and fewer objects", expect=RIGHT, default=False
)
def test_diverging(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("b", "a"), LATE.format(0.2) + READS)
    answer, diverging = read(worker, "f", "a", "b")
    assert (answer.json, diverging) == ([digest(A), digest(B)], ["region", "region"])
    deploy("f", fetching("a"), LATE.format(0.2) + READS)
    answer, fewer = read(worker, "f", "a", "b", "large")
    assert (answer.json, fewer) == ([digest(A), digest(B), digest(LARGE)], ["region", "network", "network"])
    happened(f"in another order: {', '.join(diverging)}; more than was sent: {', '.join(fewer)}")


@case(
    "J7", "a second request of the same sandbox, after the object has changed", expect="no script runs; the new object"
)
def test_a_warm_invocation(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"))
    first = worker.call("f", {"keys": ["a"]})
    s3.put("data", "a", B)
    answer, where = read(worker, "f", "a")
    assert (first, answer.json, where) == ([digest(A)], [digest(B)], [])
    assert answer.headers["x-sockd-cold"] == "0" and trace(worker.daemon, answer)["initscript"] is None  # type: ignore[arg-type]
    happened("the new object, without a script")


WRITES = """
import storage
storage.storage.unique_name = staticmethod(lambda name: name)
import threading
threading.Event().wait(0.2)

def f(event):
    storage.upload_stream("data", "a", b"new")
    return bytes(storage.download_stream("data", "a")).decode()
"""


@case("J8", "the function writes an object that the script has fetched, then reads it", expect="what it wrote")
def test_write_then_read(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"), WRITES)
    answer = worker.invoke("f")
    assert answer.json == "new"
    happened(f"what it wrote, from the {served(worker, answer)[-1]}")


WAYS_OUT = {
    "http.client": """
    host, port = os.environ["AWS_ENDPOINT_URL_S3"].partition("//")[2].split(":")
    http.client.HTTPConnection(host, int(port)).connect()""",
    "asyncio": """
    host, port = os.environ["AWS_ENDPOINT_URL_S3"].partition("//")[2].split(":")
    asyncio.run(asyncio.open_connection(host, int(port)))""",
    "datagram": """
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))""",
    "thread": """
    host, port = os.environ["AWS_ENDPOINT_URL_S3"].partition("//")[2].split(":")
    thread = threading.Thread(target=lambda: socket.create_connection((host, int(port))).close())
    thread.start()
    thread.join()""",
    "subprocess": """
    subprocess.run(["/usr/bin/true"])""",
    "fork": """
    if os.fork() == 0: os._exit(0)
    os.wait()""",
    "multiprocessing": """
    multiprocessing.get_context("spawn").Process(target=int).start()""",
    "C code": """
    host, port = os.environ["AWS_ENDPOINT_URL_S3"].partition("//")[2].split(":")
    libc = ctypes.CDLL(None)
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(int(port)), socket.inet_aton(host))
    assert libc.connect(libc.socket(2, 1, 0), address, len(address)) == 0""",
    "C code without a connection": """
    libc = ctypes.CDLL(None)
    fd = libc.socket(2, 1, 0)""",
}
LEAVES = """
import asyncio, ctypes, http.client, multiprocessing, os, socket, struct, subprocess, threading
import storage

def f(event):
    first = bytes(storage.download_stream("data", "a")) == b"a" * 100_000
    {way}
    return [first, bytes(storage.download_stream("data", "b")) == b"b" * 700_000]
"""


NOTHING_SENT = ("subprocess", "fork", "multiprocessing", "C code without a connection")


@counts_sockets
@pytest.mark.parametrize("way", WAYS_OUT)
@case(
    "P6",
    "the function sends something between two reads, by any code",
    expect="what was fetched is served before; afterwards S3 is asked whether it is the same",
)
def test_nothing_is_served_unasked_behind_what_may_be_a_write(
    worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened, way: str
) -> None:
    deploy("f", fetching("a", "b"), LEAVES.replace("{way}", WAYS_OUT[way].strip()))
    s3.forget_requests()
    answer = worker.invoke("f", {})
    assert (answer.json, served(worker, answer)) == ([True, True], ["region", "region"])
    asked = [record["path"] for record in s3.requests() if record["method"] == "HEAD"]
    assert asked == ([] if way in NOTHING_SENT else ["/data/b"])
    happened(f"{way}: {len(asked)} HEAD")


@case("J9", "two sandboxes of one function start at once", expect=f"each has a run of its own; {RIGHT}", default=False)
def test_two_at_once(worker: PrivateWorker, deploy: Deploy, s3: Client, gate: Gate, happened: Happened) -> None:
    text = "from gate import wait\n" + READS.replace("def f(event):", "def f(event):\n    wait(event['gate'])")
    deploy("f", fetching("a"), text)
    event = {"keys": ["a"], "gate": gate.port}
    with in_background(lambda: at_once(2, lambda n: worker.invoke("f", event))) as both:
        gate.arrived()
        gate.arrived()
        gate.open()
        answers = both()
    assert [answer.json for answer in answers] == [[digest(A)]] * 2
    assert len({answer.headers["x-sockd-sandbox"] for answer in answers}) == 2
    happened(f"{len(s3.requests())} GETs, served from {[served(worker, answer)[0] for answer in answers]}")


@case(
    "J10", "a function of the storage library without an initscript", expect=f"{RIGHT}, over the network", default=False
)
def test_no_initscript(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", None)
    answer = worker.invoke("f", {"keys": ["a", "b"]})
    assert answer.json == [digest(A), digest(B)]
    assert trace(worker.daemon, answer)["initscript"] is None  # type: ignore[arg-type]
    happened("both by the network")


@case("J11", "an object is larger than the region, and a run than the worker's memory", expect=RIGHT, default=False)
def test_no_room(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("large"), LATE.format(0.1) + READS, script={"region_mb": 1})
    answer, where = read(worker, "f", "large")
    assert (answer.json, where) == ([digest(LARGE)], ["network"])
    deploy("f", fetching("a"), script={"region_mb": 4096, "memory_mb": 1024})
    before = worker.daemon.status()["initscripts"]["runs"].get("no_memory", 0)
    assert worker.call("f", {"keys": ["a"]}) == [digest(A)]
    assert worker.daemon.status()["initscripts"]["runs"]["no_memory"] == before + 1
    happened("region full: from the network; no memory for the run: started without it")


TAMPERS = """
import ctypes, os
import storage
import threading
threading.Event().wait(0.2)

def attempts(view):
    try:
        view[0] = 0
        yield "written to"
    except TypeError:
        yield "read-only view"
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/maps") as maps:
        mapped = [line.split() for line in maps if " r--s " in line]
    assert mapped, "nothing is mapped"
    for fields in mapped:
        start, end = (int(part, 16) for part in fields[0].split("-"))
        if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3) == 0:
            yield "made writable"
        else:
            yield "mprotect: " + os.strerror(ctypes.get_errno())
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "shm" in os.readlink(f"/proc/self/fd/{fd}") or "/dev/zero" in os.readlink(f"/proc/self/fd/{fd}"):
                os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
                yield "opened again for writing"
        except OSError:
            continue

def f(event):
    view = storage.download_stream("data", "a")
    return [sorted(set(attempts(view))), bytes(view[:1]).decode()]
"""


@case("J12", "a function tries to write to the region, to make it writable, to open it again", expect="each is refused")
def test_a_region_is_read_only(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("a"), TAMPERS)
    answer = worker.invoke("f")
    words, first = answer.json
    assert served(worker, answer) == ["region"]
    assert words == ["mprotect: Permission denied", "read-only view"] and first == "a"
    happened(", ".join(words))


KEEPS = """
import hashlib
import storage
import threading
threading.Event().wait(0.2)
kept = []

def f(event):
    if not kept:
        kept.append(storage.download_stream("data", "b"))
    return hashlib.sha256(kept[0]).hexdigest()
"""


@case(
    "J13",
    "a function keeps a view of the region after the run, and after the engine's death",
    expect="it stays as it was",
)
def test_a_view_is_kept(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    deploy("f", fetching("b"), KEEPS)
    first = worker.invoke("f")
    assert (first.json, served(worker, first)) == (digest(B), ["region"])
    assert worker.call("f") == digest(B)
    mark = worker.daemon.mark
    os.kill(engine_pid(worker.daemon), signal.SIGKILL)
    worker.daemon.wait_line(READY, since=mark)
    assert worker.call("f") == digest(B)
    happened("the same 700 000 bytes before, after, and without the engine")


BODIES = {
    "traps": "unreachable",
    "loops": LOOP,
    "reads what it does not have": "(drop (call $buf_read (i32.const 99) (i64.const 0) (i32.const 0) (i32.const 9)))",
    "grows without end": "(loop $again (br_if $again (i32.ge_s (memory.grow (i32.const 100)) (i32.const 0))))",
}


@case(
    "J14",
    "a script traps, loops, reads what it does not have, grows without end, calls off",
    expect=f"{RIGHT}, or the abort",
    default=False,
)
def test_a_bad_script(worker: PrivateWorker, deploy: Deploy, s3: Client, happened: Happened) -> None:
    for did, body in BODIES.items():
        deploy("f", module(body, notes=False), LATE.format(0.1) + READS, script={"deadline_s": 0.2})
        answer = worker.invoke("f", {"keys": ["a"]})
        assert answer.json == [digest(A)], did
        happened(f"{did}: {trace(worker.daemon, answer)['initscript']}")  # type: ignore[arg-type]
    deploy("f", fetching(first="(call $abort_launch (i32.const 7) @text)"))
    answer = worker.invoke("f", {"keys": ["a"]})
    assert (answer.status, answer.error) == (500, "Initscript.LaunchAborted")
    happened(f"calls off: {answer.error}")


@case(
    "K15",
    "an endpoint by name where only networks are allowed; the same by address, by its name, and by an address that carries it",
    expect="the engine resolves no name that no rule names, and connects to no address that carries a denied one",
)
def test_where_the_engine_connects_to(
    worker: PrivateWorker, deploy: Deploy, server: S3Process, s3: Client, tmp_path: Path, happened: Happened
) -> None:
    env = patient(server)
    seen = {}
    for host, endpoints, expected in (
        ("127.0.0.1", ["127.0.0.0/8"], "region"),
        ("localhost", ["127.0.0.0/8", "::1/128"], "network"),
        ("localhost", ["localhost"], "region"),
    ):
        named = {key: value.replace("127.0.0.1", host) for key, value in env.items()}
        deploy("f", fetching("a"), READS + f"# {host} {endpoints}\n", env=named, script={"endpoints": endpoints})
        answer, where = read(worker, "f", "a")
        assert (answer.json, where) == ([digest(A)], [expected]), (host, endpoints)
        seen[f"{host} by {endpoints}"] = where[0]
    script = tmp_path / "fetches.wasm"
    script.write_bytes(fetching("a"))
    reached = ["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:0:a9fe:a9fe", "::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"]
    reached += ["2001:db8::5efe:a9fe:a9fe", "2001:0:a9fe:a9fe::1", "100.100.100.200", "168.63.129.16", "metadata.goog"]
    for address in reached:
        url = f"http://[{address}]" if ":" in address else f"http://{address}"
        pairs = [f"--env={key}={value}" for key, value in server.env(url).items()]
        refused = worker.cli("initscript", "run", str(script), *pairs, check=False)
        assert "forbids its endpoints" in refused.stderr, (address, refused)
    happened(f"{seen}; {len(reached)} addresses and names denied")
