"""A worker without sandboxes: what the HTTP APIs and the CLI talk to in their own tests, part by part.

Verified: `worker: Worker = FakeWorker()` is type-checked below, and every error it raises is one of sockd.base.errors.
A function's name says what it does: `echo`, `raises`, `slow`, `oom`, and so on. A test that needs another part replaces it.
"""

from __future__ import annotations

import asyncio
import hashlib
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from sockd.base import errors
from sockd.base.config import ErrorDetail, RunRule
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Note, Progress
from sockd.base.telemetry import ASKED_FOR, Ending, FunctionInfo, Invocation, LogRecord, Times
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.debugging import ReportProgress
from sockd.http.worker import Worker
from sockd.http.worker_values import Details, InvocationResult, Tree, TreeNode
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import Minute
from sockd.observe.recent import NOTHING, RecentRates
from sockd.observe.traces import TraceKind
from tests.http.fake_events import FakeEvents
from tests.support.memory_store import MemoryStore, at_once

TIMES = Times(queue=1000, setup=200_000, init=3_000_000, exec=40_000)


def invocation(body: bytes = b"null") -> Invocation:
    """An invocation that was served from a spare."""
    return Invocation(body, "spare", "sandbox-7", "v1", times=TIMES)


def info(name: str) -> FunctionInfo:
    """A plausible function."""
    return FunctionInfo(
        name=name,
        version="ab" * 32,
        version_number=1,
        handler="f:f",
        memory_mb=128,
        timeout_s=3.0,
        concurrency=10,
        network="host",
        packages=["numpy==2.3.0"],
        code_bytes=120,
        created_at=1_700_000_000.0,
        updated_at=1_700_000_000.0,
        state="packages to be installed" if name == "restored" else "ready",
        state_reason="these packages are not on this worker: numpy==2.3.0" if name == "restored" else "",
    )


ERRORS: dict[str, Callable[[], errors.SockdError]] = {
    "raises": lambda: errors.FunctionFailed("ValueError", "no \udcff good", ['  File "/var/task/f.py", line 1\n']),
    "times_out": lambda: errors.TimedOut("Task timed out after 3.00 seconds"),
    "oom": lambda: errors.OutOfMemory(limit_bytes=128 << 20, peak_bytes=128 << 20),
    "busy": lambda: errors.TooManyRequests("10 running, 1000 waiting", retry_after_s=2),
    "full": lambda: errors.NoCapacity("no memory left"),
    "storeless": lambda: errors.StoreUnavailable("s3://images/", "it does not answer"),
    "unread": lambda: errors.ImageUnavailable("the agent is gone", retry_after_s=29),
}


SERVICE: dict[str, Any] = {
    "name": "store",
    "state": "running",
    "version": "3",
    "port": 11211,
    "published": 0,
    "port_reason": "",
    "sandbox": "sandbox-9",
    "up_s": 75.0,
    "start_s": 0.02,
    "connections": 2,
    "draining": 0,
    "memory_bytes": 9 << 20,
    "starts": 2,
    "failures": 1,
    "reason": "Runtime exited with error: exit status 3",
    "retry_in_s": 0.0,
}
MS = 1_000_000
TRACE: dict[str, Any] = {
    "request_id": "0a1b2c3d-0000-4000-8000-000000000000",
    "function": "imgrec",
    "version": "3",
    "origin": "zygote",
    "sandbox": "sandbox-7",
    "node": "",
    "outcome": "ok",
    "initscript": "exit",
    "error": "",
    "stack": [],
    "log": "",
    "cut": False,
    "arrived_ns": 1000 * MS,
    "answered_ns": 1400 * MS,
    "fetched_ns": 300 * MS,
    "hidden_ns": 270 * MS,
    "replies": {"sent": 2, "reads": 2, "used": 1},
    "spans": [
        {"track": track, "name": name, "start_ns": start * MS, "end_ns": end * MS, "detail": detail}
        for track, name, start, end, detail in (
            ("daemon", "queue", 1000, 1000, ""),
            ("daemon", "fork", 1000, 1002, "root Zygote"),
            ("sandbox", "setup", 1000, 1005, ""),
            ("sandbox", "init", 1005, 1350, ""),
            ("sandbox", "exec", 1350, 1399, ""),
            ("initscript", "boot", 1001, 1301, "exit 0"),
            ("initscript", "message 0", 1301, 1301, "13000000 bytes"),
            ("rpc", "s3.GetObject data model", 1001, 1301, "200, 13000000 bytes, new connection, 4 parts"),
            ("rpc", "s3.GetObject data image", 1001, 1101, "200, 5000000 bytes, kept connection"),
            ("reads", "s3.GetObject data model", 1271, 1301, "region"),
        )
    ],
    "passed_over": "",
    "critical": [{"name": "setup", "ns": 5 * MS}, {"name": "init", "ns": 345 * MS}, {"name": "exec", "ns": 49 * MS}],
}
"""What the worker says of one invocation: see `sockd.observe.trace_spans`."""


LIVE: dict[str, Any] = {
    "window_s": 60.0,
    "worker": {
        "functions": 12,
        "rate": 81.2,
        "count": 4872,
        "cold": 1218,
        "failed": 5,
        "sandboxes": {"busy": 3, "idle": 2, "paused": 7, "spare": 4},
        "queued": 1,
        "zygotes": 3,
        "memory_reserved_bytes": 900 << 20,
        "memory_total_bytes": 12 << 30,
        "evictions": 0,
    },
    "functions": [
        {
            "name": name,
            "rate": rate,
            "rates": [0.0, rate, rate],
            "p50_ms": p50_ms,
            "p99_ms": p50_ms * 4,
            "count": round(rate * 60),
            "cold_share": 0.25,
            "failed": failed,
            "running": 2,
            "concurrency": 10,
            "queued": 1,
            "idle": 3,
            "memory_bytes": 640 << 20,
        }
        for name, rate, p50_ms, failed in (
            ("thumbnails-of-a-rather-long-name", 80.0, 1.25, 0),
            ("report", 1.2, 1800.0, 5),
        )
    ],
}
"""What the worker is doing: see `sockd.worker.live`."""


STREAMS: dict[str, tuple[int, list[tuple[bytes, bytes]]]] = {
    "streams": (200, [(b"content-type", b"text/plain"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]),
    "promises": (200, [(b"content-length", b"5")]),
    "forges": (
        299,
        [
            *((b"transfer-encoding", b"gzip"), (b"x-sockd-cold", b"7"), (b"connection", b"x"), (b"date", b"now")),
            *((b"x-amzn-requestid", b"mine"), (b"x-amzn-trace-id", b"mine")),
        ],
    ),
    "creates": (204, [(b"content-length", b"3")]),
    "breaks": (200, []),
    "late": (200, []),
    "teapot": (418, []),
}
"""Functions that answer with the pieces that their payload lists: status and headers."""
FLOOD = bytes(64 * 1024)


IMPORTS: dict[str, Any] = {
    "function": "echo",
    "version": "1",
    "seen": True,
    "zygotes_allowed": True,
    "sharing": "a Zygote has imported a part ahead: no Zygote has the rest",
    "passed_over": [],
    "packages": [
        {
            "package": "pandas==3.0.0",
            "ms": 180.5,
            "ahead_ms": 0.0,
            "in_zygote": False,
            "shareable": True,
            "refused": None,
            "modules": [
                {"module": "pandas", "ms": 100.5, "in_zygote": False},
                {"module": "pandas.core", "ms": 80.0, "in_zygote": False},
            ],
        },
        {
            "package": "numpy==2.3.0",
            "ms": 60.0,
            "ahead_ms": 60.0,
            "in_zygote": True,
            "shareable": False,
            "refused": None,
            "modules": [],
        },
        {
            "package": "odd==1.0",
            "ms": 1.0,
            "ahead_ms": 0.0,
            "in_zygote": False,
            "shareable": True,
            "refused": "it starts threads",
            "modules": [],
        },
    ],
    "standard": {"ms": 8.5, "ahead_ms": 6.0},
}
"""What a function imports: see `sockd.worker.import_report`."""


class FakeVersions:
    """Nothing was published. (What is, is tested in front of a real worker.)"""

    class provisioning:
        wanted = staticmethod(lambda name: 0)

    def alias(self, name: str, alias: str) -> None:
        raise errors.NoSuchVersion(name, alias)


class FakeWorker:
    """What the parts share: functions by name, what they were asked, and events by which a test goes step by step."""

    def __init__(self) -> None:
        self.url = "http://127.0.0.1:5000"
        self.names = {"echo", "slow", "bug", *ERRORS, *STREAMS}
        self.begun = 0
        self.invoked: list[tuple[str, bytes]] = []
        self.sent = 0
        """Bytes that were streamed."""
        self.finished = asyncio.Event()
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.following = asyncio.Event()
        self.records: asyncio.Queue[LogRecord] = asyncio.Queue()
        self.deployed: dict[str, tuple[list[str], dict[str, Any]]] = {}
        self.upload: Path | None = None
        self.initscripts: dict[str, bytes | None] = {}
        self.registry = Registry(MemoryStore())
        self.calls = FakeCalls(self)
        self.functions = FakeFunctions(self)
        self.versions: Any = FakeVersions()
        self.urls = FunctionUrls(self.registry)
        self.events: Any = FakeEvents(lambda name: self.functions.info(name))
        self.group = FakeGroup(self)
        self.packages = FakePackages(self)
        self.logs = FakeLogs(self)
        self.traces = FakeTraces(self)
        self.numbers = FakeNumbers(self)


class FakeCalls:
    """Functions by name, answered at once; counts what it was asked."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker
        self.draining = self.leaving = False

    def begin(self, request: InvokeRequest, done: Callable[[Ending], None]) -> Callable[[], object] | None:
        """As the daemon's, but in a task of its own; half of the functions are not ready."""
        self._worker.begun += 1
        if len(request.name) % 2:
            return None

        def tell(task: asyncio.Task[Invocation]) -> None:
            if not task.cancelled():
                done(task.exception() or task.result())

        running = asyncio.get_running_loop().create_task(self.invoke(request))
        running.add_done_callback(tell)
        return running.cancel

    async def invoke(self, request: InvokeRequest) -> Invocation:
        name, payload = request.name, request.payload
        self._worker.functions.info(name)
        if request.qualifier not in ("", "$LATEST", "1"):
            raise errors.NoSuchVersion(name, request.qualifier)
        if request.method not in ("GET", "POST", "*"):
            raise errors.MethodNotAllowed(request.method, "GET, POST")
        self._worker.invoked.append((name, payload))
        if name in ERRORS:
            error = ERRORS[name]()
            if name != "busy":
                error.invocation = invocation()
            raise error
        if name in STREAMS:
            return await self._stream(request)
        if name == "bug":
            raise RuntimeError("secret /path")
        if name == "slow":
            self._worker.started.set()
            await self._worker.release.wait()
        self._worker.finished.set()
        answer = invocation(payload)
        return msgspec.structs.replace(answer, why=ASKED_FOR) if request.fresh else answer

    async def _stream(self, request: InvokeRequest) -> Invocation:
        """Its pieces, then what its name says; it `finished` when its client took all or hung up."""
        sink = request.sink
        assert sink is not None
        sink.begun = invocation(b"")
        sink.on_gone = self._worker.cancelled.set
        if request.name == "late":
            while not (request.gone and request.gone()):
                await asyncio.sleep(0)
        status, headers = STREAMS[request.name]
        await sink.head(status, headers)
        self._worker.started.set()
        for piece in msgspec.json.decode(request.payload, type=list[str]):
            if piece == "wait":
                await self._worker.release.wait()
                continue
            for part in [FLOOD] * 400 if piece == "flood" else [piece.encode()]:
                if not self._worker.cancelled.is_set():
                    self._worker.sent += len(part)
                    await sink.chunk(part)
        self._worker.finished.set()
        if request.name == "breaks":
            raise ERRORS["raises"]()
        return msgspec.structs.replace(invocation(b""), streamed=True)

    async def record(self, request: InvokeRequest) -> dict[str, Any]:
        answer = await self.invoke(request)
        read = {"rpc": ["s3.GetObject", "b", "k"], "served": "network", "start_ns": 1, "end_ns": 2}
        return {"request_id": request.id.hex(), "event": request.payload, "answer": answer.body, "reads": [read]}

    def is_app(self, name: str) -> bool:
        return name in STREAMS

    def call_key(self, name: str) -> bytes | None:
        return None

    def incarnation(self, name: str, qualifier: str = "") -> str:
        return "first"

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        name, payload = request.name, request.payload
        error = ERRORS[name]() if name in ERRORS else None
        if isinstance(error, errors.TooManyRequests):
            raise error
        self._worker.functions.info(name)
        return InvocationResult(invocation(payload), error, b"x" * 5000 + b"\nlast line", 128, 30 << 20)

    async def debug(self, request: InvokeRequest, port: int, tell: ReportProgress) -> Invocation:
        raise NotImplementedError("debuggers are tested on a daemon")


class FakeGroup:
    """One worker that is a group of two, of which the other one is gone."""

    name = "g"

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    async def workers(self) -> list[dict[str, Any]]:
        about = {"address": "127.0.0.1:5000", "version": "0.1.0", "configuration": "0123456789ab", "draining": False}
        load = {"running": 2, "queued": 1, "memory": 0.25, "functions": 12}
        return [
            {
                "name": name,
                "here": name == "w1",
                "state": state,
                **about,
                **load,
                "events": 3,
                "seen_s": seen_s,
                "taken_by": taken_by,
            }
            for name, state, seen_s, taken_by in (("w1", "serving", 0.5, ""), ("w2", "gone", 60.0, "w1"))
        ]

    @asynccontextmanager
    async def ask(self, worker: str, target: bytes, authorization: bytes) -> AsyncGenerator[FakePeerAnswer]:
        yield FakePeerAnswer()

    async def drain(self, *, draining: bool) -> None:
        self._worker.calls.leaving = draining


class FakePeerAnswer:
    """What another worker answers."""

    status = 200
    fields: ClassVar = {"content-type": "application/json", "content-length": "2"}
    is_endless = False

    async def parts(self) -> AsyncGenerator[bytes]:
        yield await self.body()

    async def body(self) -> bytes:
        return b"[]"


class FakeFunctions:
    """Functions that are named, and what was deployed; a registry has their records."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker
        self.run_rules: dict[str, RunRule] = {}
        self.error_details: dict[str, ErrorDetail] = {}

    async def deploy(
        self,
        name: str,
        zip_path: Path,
        *,
        overrides: dict[str, Any],
        progress: Progress,
        initscript: bytes | None = None,
    ) -> FunctionInfo:
        self._worker.upload = zip_path
        self._worker.initscripts[name] = initscript
        progress("reading the archive")
        try:
            with zipfile.ZipFile(zip_path) as archive:
                self._worker.deployed[name] = (archive.namelist(), overrides)
        except zipfile.BadZipFile:
            raise errors.BadArchive("not a zip file") from None
        if name == "web_app":
            return msgspec.structs.replace(info(name), is_app=True)
        if name == "noted":
            progress(Note("kept from sockd config and sockd env: memory_mb = 256"))
        if name == "noted_and_refused":
            progress(Note("pyproject.toml is not used"))
            raise errors.VersionFailed(name, "ImportError", "no", ['  File "/var/task/f.py", line 1\n'])
        if name == "slow":
            self._worker.started.set()
            try:
                await self._worker.release.wait()
            except asyncio.CancelledError:
                self._worker.cancelled.set()
                raise
        self.put(name, FunctionConfig())
        return info(name)

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        self._worker.functions.info(name)
        progress("compiling the initscript")
        if not initscript.startswith(b"\0asm"):
            raise errors.BadInitscript("the initscript cannot run: not a WebAssembly binary")
        self._worker.initscripts[name] = initscript
        return msgspec.structs.replace(info(name), initscript="cd" * 32)

    async def remove(self, name: str) -> None:
        self._worker.functions.info(name)
        self._worker.names.remove(name)
        if self._worker.registry.of(name).deploys:
            await self._worker.registry.delete(name)

    def put(self, name: str, config: FunctionConfig, content: bytes = b"") -> None:
        """Record a deploy."""
        digest = hashlib.sha256(content).hexdigest()
        self._worker.names.add(name)
        put = self._worker.registry.put
        at_once(put(name, digest=digest, code_bytes=len(content), handler="f:f", config=config.to_json(), closure=""))

    def all(self) -> list[FunctionInfo]:
        return [self.info(name) for name in sorted(self._worker.names)]

    def info(self, name: str) -> FunctionInfo:
        if name not in self._worker.names:
            raise errors.NoSuchFunction(f"no function is called {name}")
        return info(name)

    def details(self, name: str, qualifier: str = "") -> Details:
        self.info(name)
        if not self._worker.registry.of(name).deploys:
            self.put(name, FunctionConfig())
        record = self._worker.registry.get(name)
        return Details(record, record.settings)

    def all_details(self) -> list[Details]:
        return [self.details(name) for name in sorted(self._worker.names)]

    async def configure(self, name: str, changes: dict[str, Any], *, is_checked: bool = False) -> None:
        self.put(name, self.details(name).config.changed(changes))

    async def disable(self, name: str) -> None:
        await self.configure(name, {"concurrency": 0})

    async def enable(self, name: str) -> None:
        await self.configure(name, {"concurrency": self.default_concurrency()})

    async def check_archive(self, zip_path: Path) -> None:
        if not zip_path.read_bytes().startswith(b"PK"):
            raise errors.BadArchive("not a zip file")

    def default_concurrency(self) -> int:
        return 10

    def sandboxes_that_fit(self) -> int:
        return 77

    async def delete_version(self, name: str, number: int) -> None:
        raise NotImplementedError("versions are tested on a daemon")

    async def delete_alias(self, name: str, alias: str) -> None:
        raise NotImplementedError("aliases are tested on a daemon")


class FakePackages:
    """One package."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    def all(self) -> list[dict[str, Any]]:
        return [
            {
                "key": "numpy-2.3.0-abc",
                "name": "numpy",
                "version": "2.3.0",
                "size_bytes": 1 << 20,
                "functions": ["echo"],
            }
        ]

    async def add(self, requirements: str, progress: Progress) -> list[str]:
        progress("resolving")
        if "nonsense" in requirements:
            raise errors.ResolveFailed("nonsense was not found in the package registry")
        return ["numpy-2.3.0-abc"]

    def forgive(self, name: str | None) -> list[str]:
        return ["numpy-2.3.0-abc"] if name in (None, "numpy") else []

    async def remove(self, key: str) -> None:
        if key != "numpy-2.3.0-abc":
            raise errors.BadRequest(f"{key} is not installed")

    def imports(self, name: str) -> dict[str, Any]:
        self._worker.functions.info(name)
        return IMPORTS


class FakeLogs:
    """Three records of every function, and those that a test puts."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    def tail(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self._worker.functions.info(name)
        records = [LogRecord(f"r{n}", 1_700_000_000.0 + n, b"line \xff %d\n" % n, 0) for n in range(3)]
        return [record for record in records if request_id in (None, record.request_id)][:limit]

    async def find(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        found = [record for record in self.tail(name, request_id=None, limit=limit) if record.time_s >= since_s]
        return [record for record in found if record.request_id.startswith(request_id)]

    async def follow(self, name: str) -> AsyncIterator[LogRecord]:
        self._worker.following.set()
        try:
            while True:
                yield await self._worker.records.get()
        finally:
            self._worker.cancelled.set()


class FakeTraces:
    """One invocation."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    def last(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        return [{key: value for key, value in TRACE.items() if key not in ("spans", "critical")}][:limit]

    async def get(self, request_id: str, functions: Sequence[str] = ()) -> dict[str, Any]:
        if not str(TRACE["request_id"]).startswith(request_id):
            raise errors.NoSuchFunction(f"no invocation {request_id!r}")
        return TRACE

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        return []


class FakeNumbers:
    """A worker that has done a little."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker
        self.started_s = 1_700_000_000.0

    def status(self) -> dict[str, Any]:
        return {
            "url": self._worker.url,
            "limits": {"payload_bytes": 6 << 20, "archive_bytes": 60 << 20, "initscript_bytes": 1 << 20},
            "pid": 1,
            "version": "0",
            "functions": len(self._worker.names),
            "sandboxes": {"idle": 2},
            "events": {"waiting": 3, "oldest_age_s": 2.0, "waiting_bytes": 2048},
        }

    def tree(self) -> Tree:
        numpy = TreeNode(packages=["numpy==2.3.0"], modules=80, unique_memory_bytes=9 << 20, rate=1.5, spares=4)
        return Tree(
            root=TreeNode(packages=[], modules=40, unique_memory_bytes=6 << 20, children=[numpy]),
            refused=[{"package": "grpcio==1.0", "reason": "starts threads on import"}],
        )

    async def metrics(self) -> bytes:
        return b"# TYPE x counter\nx_total 1\n"

    def live(self, limit: int) -> dict[str, Any]:
        return {**LIVE, "functions": LIVE["functions"][:limit]}

    def services(self) -> list[dict[str, Any]]:
        return [SERVICE]

    def recent_rates(self, name: str) -> RecentRates:
        return NOTHING

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        return []


_verified: Callable[[], Worker] = FakeWorker
