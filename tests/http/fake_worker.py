"""A worker without sandboxes: what the HTTP APIs and the CLI talk to in their own tests, part by part.

Verified: `worker: Worker = FakeWorker()` is type-checked below, and every error it raises is one of sockd.base.errors.
A function's name says what it does: `echo`, `raises`, `slow`, `oom`, and so on. A test that needs another part replaces it.
"""

from __future__ import annotations

import asyncio
import hashlib
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sockd.base import errors
from sockd.base.config import ErrorDetail, RunRule
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Note, Progress
from sockd.base.telemetry import ASKED_FOR, Ending, FunctionInfo, Invocation, LogRecord
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
from tests.http.fake_group import FakeGroup
from tests.http.worker_answers import ERRORS, FLOOD, IMPORTS, LIVE, PACKAGE, SERVICE, STREAMS, TRACE, info, invocation
from tests.support.memory_store import MemoryStore, at_once


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
        self.group = FakeGroup(self.calls)
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
        return [PACKAGE]

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
