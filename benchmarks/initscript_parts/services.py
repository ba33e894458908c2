"""Servers that start from a state that is elsewhere, as services with and without an initscript (its paper, Figs. 11 to 13).

What is measured is a request that finds no program: it starts one, which gets its state, and answers. All arms are the same
program. With a script it is handed what the engine has fetched meanwhile; without one it fetches that itself, by one HTTP
request to a presigned URL, as the paper's clients do, or by grpcio. After each answer the worker stops the program, as it is
unused. S3 is at the paper's distance, and each peer answers after the time of a first byte.

The bandwidth is that of a connection, and the engine fetches a large object in ranges over several. A third arm, without a
script, does so as well. What a script gains over that one is the time that passes until the program can ask, and memory that is
ready: of the gain for 200 MB, the ranges are the larger part.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.cold import cold_config
from benchmarks.harness.forwarding import forwarding
from benchmarks.harness.results import median
from benchmarks.harness.run import Run, in_turns
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.initscript_parts import server_states as states
from benchmarks.initscript_parts.hand_over import HEADERS
from benchmarks.initscript_parts.scripted import BUCKET, EXAMPLES, build
from benchmarks.peers import shards
from benchmarks.peers.shaping_proxy import BANDWIDTH_MB, FIRST_BYTE_MS
from benchmarks.s3.process import REGION, S3Process

SOURCES = Path(__file__).parent
ANSWER_S = 60.0
SHARDS = 15
GATEWAY = "169.254.1.1"
"""By which a server, and its script, reach the host's loopback."""
CONNECTIONS = 8
"""How many the arm that fetches in ranges has: as many as the engine (`sockd_initscripts.rpc.limits`)."""
WAITS = {"init_timeout_s": 60, "timeout_s": 60}


class WrongAnswer(Exception):
    """A server has other data than it was given, or ran already."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its program, its state, and a question about it."""

    where: str
    """The figure of the paper."""
    subject: str
    paper: str
    """The paper's gain, as it is printed there."""
    program: str
    """A file of `servers`: in Python, or one in C that is compiled here."""
    script: Path
    args: dict[str, Any]
    """What the script is given."""
    port: int
    answer: bytes
    ask: Callable[[Worker, str, int], bytes]
    """Args: the worker, the service's name, its port of the host."""
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    requirements: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    service: dict[str, Any] = field(default_factory=dict)
    in_c: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one server."""

    where: str
    subject: str
    paper: str
    plain: list[float] = field(default_factory=list)
    ranges: list[float] = field(default_factory=list)
    """Without a script, over several connections; empty: that server has no such arm."""
    scripted: list[float] = field(default_factory=list)
    why: str = ""
    """Why there is no number."""

    @property
    def gain(self) -> float | None:
        return median(self.plain) / median(self.scripted) if self.plain else None

    @property
    def gain_over_ranges(self) -> float | None:
        """The gain over a program that fetches as the engine does."""
        return median(self.ranges) / median(self.scripted) if self.ranges else None


@dataclass(frozen=True, slots=True)
class Stage:
    """What all servers need."""

    run: Run
    scratch: Path
    s3: S3Process
    peers: int
    """The port of the peers of a cache server."""

    def object(self, key: str, data: bytes) -> dict[str, str]:
        """Store an object. Returns: the variable by which a server without a script finds it."""
        import boto3  # presigns; it is no part of what is measured
        from botocore.config import Config

        with self.s3.client() as client:
            client.put(BUCKET, key, data)
        env = self.s3.env()
        keys = {"aws_access_key_id": self.s3.access_key, "aws_secret_access_key": self.s3.secret_key}
        settings = Config(signature_version="s3v4", s3={"addressing_style": "path"})
        client = boto3.client(
            "s3", endpoint_url=env["AWS_ENDPOINT_URL_S3"], region_name=REGION, config=settings, **keys
        )
        return {"STATE_URL": client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})}


def measure(run: Run, scratch: Path) -> list[Measured]:
    """Measure all servers that are installed. Raises: WorkerFailed, WrongAnswer."""
    with S3Process() as s3, shards.peers() as peers:
        with s3.client() as client:
            client.make_bucket(BUCKET)
        stage = Stage(run, scratch, s3, peers)
        servers = [make(stage) for make in run.pick(SERVERS, (memcached,))]
        with s3.client() as client:
            client.inject(delay_s=FIRST_BYTE_MS / 1000, bandwidth_bytes_s=BANDWIDTH_MB * 1e6)
        ports = [int(s3.url.rpartition(":")[2]), peers]
        with forwarding(), running_worker(cold_config(network={"host_ports": ports})) as worker:
            return [each if isinstance(each, Measured) else measured(stage, worker, each, ports) for each in servers]


def measured(stage: Stage, worker: Worker, server: Server, ports: list[int]) -> Measured:
    """Measure one server, its arms in turns."""
    stage.run.say(server.subject)
    turns = {}
    has_ranges = "STATE_URL" in server.env and not stage.run.quick
    for arm in ("plain", *(["ranges"] if has_ranges else []), "scripted"):
        published = states.free_port()
        name = f"{server.program}{'-c' * server.in_c}-{arm}"
        directory = written(stage, server, name, published, ports, arm=arm)
        worker.cli("deploy", str(directory), "--name", name, "--no-check")  # the first of its turns does
        turns[arm] = lambda name=name, published=published: started(worker, server, name, published)
        turns[arm]()  # what a first start alone has to do
    found = in_turns(turns, stage.run.pick(15, 2))
    times = found["plain"], found.get("ranges", []), found["scripted"]
    return Measured(server.where, server.subject, server.paper, *times)


def started(worker: Worker, server: Server, name: str, published: int) -> float:
    """Return the ms of one request that starts the program. Raises: WrongAnswer."""
    while (row := row_of(worker, name))["state"] != "stopped":
        time.sleep(0.02)
    begun = time.perf_counter()
    answer = server.ask(worker, name, published)
    ms = (time.perf_counter() - begun) * 1000
    if answer != server.answer:
        raise WrongAnswer(f"{name} answered {answer[:80]!r}, and not {server.answer[:80]!r}")
    if (now := row_of(worker, name))["starts"] != row["starts"] + 1 or now["failures"]:
        raise WrongAnswer(f"{name} was not started once: {now}")
    return ms


def row_of(worker: Worker, name: str) -> dict[str, Any]:
    """What `sockd ps` shows of a service."""
    return next(row for row in worker.ask("/services") if row["name"] == name)


def written(stage: Stage, server: Server, name: str, published: int, ports: list[int], *, arm: str) -> Path:
    """Write the code of one arm of a server; return its directory."""
    directory = stage.scratch / name
    shutil.copytree(SOURCES / "servers", directory, ignore=shutil.ignore_patterns("__pycache__"))
    for file, data in server.files.items():
        (directory / file).write_bytes(data)
    if server.requirements:
        (directory / "requirements.txt").write_text(server.requirements)
    command = ["/usr/bin/python3", "-S" if not server.requirements else "-s", f"{server.program}.py"]
    if server.in_c:
        command = [f"./{server.program}"]
        compile_server(directory / f"{server.program}.c")
    tables = {
        "": {
            "kind": "service",
            "command": command,
            "network": "private",
            "egress": [f"host:{port}" for port in ports],
            **WAITS,
            **server.settings,
        },
        "service": {"port": server.port, "publish": published, "idle_s": 0.1, **server.service},
        "env": {
            **stage.s3.env(f"http://{GATEWAY}:{ports[0]}"),
            **server.env,
            **({"STATE_CONNECTIONS": str(CONNECTIONS)} if arm == "ranges" else {}),
        },
    }
    if arm == "scripted":
        shutil.copy(server.script, directory / "init.wasm")
        endpoints = [f"{GATEWAY}:{port}" for port in ports]
        tables["initscript"] = {
            "wasm": "init.wasm",
            "args": json.dumps(server.args),
            "endpoints": endpoints,
            "region_mb": 256,
        }
    (directory / "sockd.toml").write_text("".join(table_text(key, table) for key, table in tables.items()))
    return directory


def compile_server(source: Path) -> None:
    """Make a program in C beside its source. Raises: subprocess.CalledProcessError."""
    options = ["-std=gnu11", "-O3", "-I", str(HEADERS), "-o", str(source.with_suffix("")), "-pthread"]
    subprocess.run(["cc", *options, str(source)], check=True, capture_output=True)


def table_text(name: str, table: dict[str, Any]) -> str:
    """A table of TOML."""
    head = f"[{name}]\n" if name else ""
    return head + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def over_http(method: str, path: str, body: bytes | None = None) -> Callable[[Worker, str, int], bytes]:
    """Ask by HTTP, through the worker."""

    def ask(worker: Worker, name: str, published: int) -> bytes:
        request = urllib.request.Request(f"{worker.url}/run/{name}{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            data: bytes = answer.read()
            return data

    return ask


def memcached(stage: Stage) -> Server | Measured:
    """Fig. 11: memcached that begins with the memory of an earlier one."""
    megabytes = stage.run.pick(200, 48)
    where = ("Fig. 11", f"memcached, {megabytes} MB of state", "1.56")
    if why := states.lacking("memcached"):
        return Measured(*where, why=why)
    memory, meta = states.memcached_state(stage.scratch, megabytes)

    def ask(worker: Worker, name: str, published: int) -> bytes:
        with socket.create_connection(("127.0.0.1", published), timeout=ANSWER_S) as client:
            client.sendall(f"get {states.KEPT}\r\n".encode())
            with client.makefile("rb") as lines:
                first = lines.readline()
                return first + (lines.readline() if first.startswith(b"VALUE") else b"")

    return Server(
        *where,
        program="memcached",
        script=build(SOURCES / "receiver_init.c", stage.scratch),
        args={"key": "memcached", "as": "file"},
        port=11211,
        answer=f"VALUE {states.KEPT} 0 5000\r\n{'v' * 5000}\r\n".encode(),
        ask=ask,
        env={**stage.object("memcached", memory), "MEMORY_MB": str(megabytes)},
        files={"memory.meta": meta},
        settings={"memory_mb": 1024, "tmp_mb": 512},
    )


def etcd(stage: Stage) -> Server | Measured:
    """Fig. 11: etcd that restores a snapshot."""
    where = ("Fig. 11", "etcd, 14 MB of state", "1.18")
    if why := states.lacking("etcd", "etcdctl"):
        return Measured(*where, why=why)
    snapshot = states.etcd_state(stage.scratch)
    count = json.dumps(
        {"key": "a2V5LQ==", "range_end": "a2V5Lg==", "count_only": True}
    ).encode()  # all that begin with key-

    def ask(worker: Worker, name: str, published: int) -> bytes:
        answer = json.loads(over_http("POST", "/v3/kv/range", count)(worker, name, published))
        return str(answer["count"]).encode()

    return Server(
        *where,
        program="etcd",
        script=build(SOURCES / "receiver_init.c", stage.scratch),
        args={"key": "etcd", "as": "file"},
        port=2379,
        answer=str(states.VALUES).encode(),
        ask=ask,
        env=stage.object("etcd", snapshot),
        settings={"memory_mb": 1024, "tmp_mb": 512},
        service={"ready_path": "/health"},
    )


def vecdb(stage: Stage) -> Server | Measured:
    """Fig. 13: a vector database, in C as the paper's is in C++."""
    where = ("Fig. 13", "a vector database in C, 9.2 MB", "1.72")
    if why := states.lacking("cc"):
        return Measured(*where, why=why)
    return Server(*where, program="vecdb", in_c=True, **vector_search(stage))


def usearch(stage: Stage) -> Server:
    """Fig. 13: a vector database in Python, most of whose start is the import of its packages."""
    subject = "a vector database on usearch, 9.2 MB"
    packages = "usearch\nnumpy\n"
    return Server("Fig. 13", subject, "1.72", program="vecdb", requirements=packages, **vector_search(stage))


def vector_search(stage: Stage) -> dict[str, Any]:
    """What both vector databases have."""
    return {
        "script": build(SOURCES / "receiver_init.c", stage.scratch),
        "args": {"key": "vectors", "as": "view"},
        "port": 8080,
        "answer": b"4711",
        "ask": over_http("GET", "/nearest/4711"),
        "env": stage.object("vectors", states.vectors()),
        "settings": {"memory_mb": 512},
    }


def cached(stage: Stage) -> Server:
    """Fig. 13: a cache server that asks its peers for its shards."""
    names = [f"shard-{number}" for number in range(SHARDS)]
    key = shards.key(names[3], 14)
    return Server(
        "Fig. 13",
        "a cache server, 15 MB from its peers by gRPC",
        "1.75",
        program="cached",
        script=build(EXAMPLES / "vector_db" / "vector_db.c", stage.scratch),
        args={"server": f"grpc://{GATEWAY}:{stage.peers}", "shards": names},
        port=8080,
        answer=shards.shard(names[3])[14 * shards.LINE_BYTES : 15 * shards.LINE_BYTES],
        ask=over_http("GET", f"/get/{key}"),
        env={"SHARDS": json.dumps(names), "PEERS_PORT": str(stage.peers)},
        requirements="grpcio\n",
        settings={"memory_mb": 512},
    )


SERVERS: tuple[Callable[[Stage], Server | Measured], ...] = (memcached, etcd, vecdb, usearch, cached)
"""The servers that the paper measured."""
