"""A worker for the page's tests, and its events, versions and URLs: their texts can be set to anything, hostile ones included."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sockd.base import errors
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import FunctionInfo, LogRecord
from sockd.events.dead_letters import NoSuchEvent
from sockd.events.schedules.schedule_table import Schedule
from sockd.http.page.sources import EventCounts, PageSources, UrlRow
from sockd.http.worker_values import InvocationResult, Tree, TreeNode
from sockd.observe.failure_groups import FailureGroup, failure_key
from sockd.observe.history import Minute
from sockd.observe.recent import NOTHING, SLOTS, RecentRates
from sockd.observe.traces import TraceKind
from tests.http.fake_worker import (
    FakeCalls,
    FakeFunctions,
    FakeLogs,
    FakeNumbers,
    FakePackages,
    FakeTraces,
    FakeWorker,
)
from tests.http.worker_answers import ERRORS, IMPORTS, LIVE, TRACE, info, invocation

MS = 1_000_000
REQUEST_ID = TRACE["request_id"]
FAILED_ID = uuid.UUID(REQUEST_ID).bytes
STARTED_S = 1_700_000_000.0
HOUR_S = 1_699_999_200
TOLD: dict[str, Any] = {
    **TRACE,
    "times": {"queue": 0, "setup": 5 * MS, "init": 345 * MS, "exec": 49 * MS},
    "why": "It is the first request of this function that is remembered.",
    "zygote": "numpy",
    "imported": [{"package": "pillow-11.0.0-abc", "modules": 3, "ns": 5 * MS}],
}
COUNTS: dict[str, Any] = {
    "sandboxes": {"busy": 1, "idle": 2, "paused": 3, "spare": 4},
    "zygotes": 2,
    "packages": 5,
    "evictions": 6,
    "networks": {"pool_hits": 9, "pool_misses": 1, "ready": 4, "in_use": 6},
    "caches": {
        "handler": {"hits": 90, "misses": 10},
        "import": {"full": 3, "partial": 1, "missed": 0, "unneeded": 6, "passed_over": 1},
        "install": {"hits": 1, "misses": 1},
    },
}


class PageCalls(FakeCalls):
    """As `FakeCalls`, with hostile texts."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        self._page.functions.info(request.name)
        if request.name == "busy":
            raise ERRORS["busy"]()
        self._page.invoked.append((request.name, request.payload))
        text = self._page.text
        failure = errors.FunctionFailed(text, text, [text]) if request.name == "fails" else None
        raw = text.encode("utf-8", "surrogatepass")
        return InvocationResult(invocation(raw), failure, raw, 128, 20 << 20)


class PageFunctions(FakeFunctions):
    """As `FakeFunctions`; `text` is what each is made of."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    async def disable(self, name: str) -> None:
        self.info(name)
        self._page.changed.append(("disable", name))
        self._page.disabled.add(name)

    async def enable(self, name: str) -> None:
        self.info(name)
        self._page.changed.append(("enable", name))
        self._page.disabled.discard(name)

    def info(self, name: str) -> FunctionInfo:
        super().info(name)
        text = self._page.text
        made = msgspec.structs.replace(info(name), handler=text, packages=[f"{text}==1.0"])
        return msgspec.structs.replace(made, concurrency=0) if name in self._page.disabled else made


class PageLogs(FakeLogs):
    """As `FakeLogs`; every function has printed `text`."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    def tail(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self._page.functions.info(name)
        return [LogRecord(REQUEST_ID, 1_700_000_000.0, self._page.text.encode("utf-8", "surrogatepass"), 7)][:limit]


class PagePackages(FakePackages):
    """As `FakePackages`; one of `text` is refused."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    def imports(self, name: str) -> dict[str, Any]:
        self._page.functions.info(name)
        text = self._page.text
        return {
            **IMPORTS,
            "packages": [{**IMPORTS["packages"][2], "package": f"{text}==1.0", "refused": text}],
            "passed_over": [{"packages": [text], "reason": text}],
        }


class PageTraces(FakeTraces):
    """As `FakeTraces`; every function has failed with `text`."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    def last(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        text = self._page.text
        failed = {"outcome": text, "error": text, "stack": [text]}
        return [{**TOLD, "function": name, **failed} for name in sorted(self._page.names)][:limit]

    async def get(self, request_id: str, functions: Sequence[str] = ()) -> dict[str, Any]:
        if request_id != REQUEST_ID:
            raise errors.NoSuchFunction(f"no invocation {request_id!r}")
        text, names = self._page.text, sorted(self._page.names)
        changed = {
            "outcome": text,
            "error": text,
            "stack": [text],
            "spans": [*TOLD["spans"], {**TOLD["spans"][0], "track": "rpc", "name": text, "detail": text}],
            "critical": [*TOLD["critical"], {"name": f"read {text}", "ns": MS}, {"name": text, "ns": MS}],
            "function": names[0] if names else "gone",
            "imported": [{"package": text, "modules": 1, "ns": 1}],
        }
        return {**TOLD, **changed, "log": text, "why": "Because.", "zygote": text}

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        text = self._page.text
        names = [name for name in sorted(self._page.names) if function in (None, name)]
        made = [
            FailureGroup(failure_key(name, text, [text]), 50, 1000 * MS, 9000 * MS, FAILED_ID, text) for name in names
        ]
        return (made if self._page.groups is None else self._page.groups)[:limit]


class PageNumbers(FakeNumbers):
    """As `FakeNumbers`, with numbers for each name."""

    def __init__(self, worker: FakePageWorker) -> None:
        super().__init__(worker)
        self._page = worker

    def live(self, limit: int) -> dict[str, Any]:
        page = self._page
        page.read += 1
        row = LIVE["functions"][0]
        worker = {**LIVE["worker"], "functions": len(page.names), "count": round(page.rate * 60), "cold": 30}
        return {**LIVE, "worker": worker, "functions": [{**row, "name": name} for name in sorted(page.names)][:limit]}

    def recent_rates(self, name: str) -> RecentRates:
        if name not in self._page.names:
            return NOTHING
        rate = self._page.rate
        return RecentRates(120, rate, MS, 4 * MS, 0.1, 3, (rate,) * SLOTS)

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        is_there = name is None or name in self._page.names
        minute = self._page.minute
        return [(HOUR_S + 60 * number, minute if is_there and number >= 50 else None) for number in range(60)]

    def status(self) -> dict[str, Any]:
        return {**super().status(), **COUNTS}

    def tree(self) -> Tree:
        text = self._page.text
        child = TreeNode(
            packages=["numpy==2.3.0", f"{text}==1"],
            unique_memory_bytes=9 << 20,
            shared_memory_bytes=1,
            passed_over=[text],
        )
        root = TreeNode(packages=[], unique_memory_bytes=6 << 20, children=[child])
        refusal = {"package": "grpcio==1.0", "reason": text, "zygote": text, "tries": 2, "retry_in_s": 7200.0}
        return Tree(root=root, refused=[refusal])


class FakePageWorker(FakeWorker):
    """`names` has functions; `text` is what each of them prints, raises and is made of."""

    def __init__(self, *names: str, text: str = "plain") -> None:
        super().__init__()
        self.names = set(names)
        self.text = text
        self.disabled: set[str] = set()
        self.rate = 2.0
        self.minute = Minute(120, 3, 12, MS, 4 * MS)
        self.groups: list[FailureGroup] | None = None
        self.changed: list[tuple[str, str]] = []
        self.read = 0
        """How often it was looked at."""
        self.calls = PageCalls(self)
        self.functions = PageFunctions(self)
        self.logs = PageLogs(self)
        self.packages = PagePackages(self)
        self.traces = PageTraces(self)
        self.numbers = PageNumbers(self)


class FakePageSources:
    """Versions, URLs, schedules and events that are made of `text` where somebody else chooses it."""

    def __init__(self, text: str = "plain") -> None:
        self.text = text
        self.latest = 5
        self.changed: list[tuple[str, str]] = []

    def rollback_target(self, name: str) -> Mapping[str, Any] | None:
        return {"deploy": 4, "digest": "cd" * 32, "deployed_at": 1.7e9} if name != "new" else None

    async def rollback(self, name: str) -> Mapping[str, Any]:
        self.changed.append(("rollback", name))
        self.latest += 1
        return {"deploy": self.latest, "digest": "cd" * 32, "deployed_at": 1.7e9}

    async def retry(self, event_id: str) -> None:
        self.changed.append(("retry", event_id))

    def versions(self, name: str) -> Mapping[str, Any]:
        version = {"version": 3, "description": self.text, "published_at": 1.7e9, "deploy": 4, "digest": "ab" * 32}
        alias = {
            "alias": "live",
            "version": "3",
            "canary": {"2": 0.1},
            "description": self.text,
            "guard": None,
            "outcome": self.text,
        }
        kept = {"qualifier": "live", "available": 1, "wanted": 2, "reason": self.text}
        deploy = {"deploy": 4, "digest": "ab" * 32, "deployed_at": 1.7e9}
        listed = {"versions": [version], "aliases": [alias], "provisioned": [kept], "deploys": [deploy]}
        return {"latest": self.latest, **listed}

    def urls(self, name: str) -> Sequence[UrlRow]:
        return [UrlRow("http://ab.lambda-url.localhost:5000/", "", "NONE", "BUFFERED")]

    def schedules(self, function: str | None) -> Sequence[Schedule]:
        return [
            Schedule(
                name="nightly",
                function=function or "echo",
                expression="cron(0 3 * * ? *)",
                timezone="Europe/Berlin",
                created_at=1.7e9,
                next_at=1.8e9,
            )
        ]

    def counts(self) -> EventCounts:
        return EventCounts(3, 1, 2, 1, 240.0)

    def waiting(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        return [self._event(function or "echo")]

    async def dead_letters(self, function: str | None, limit: int) -> list[dict[str, Any]]:
        return [self._dead(function or "echo")]

    async def event(self, event_id: str) -> dict[str, Any]:
        if event_id != REQUEST_ID:
            raise NoSuchEvent(f"no dead letter {event_id!r}")
        return {**self._dead("echo"), "payload": self.text}

    def _event(self, function: str) -> dict[str, Any]:
        return {
            "id": REQUEST_ID,
            "function": function,
            "qualifier": "",
            "source": "schedule:nightly",
            "accepted_at": 1.7e9,
            "attempts": 3,
            "payload_bytes": 2048,
            "state": "waiting",
        }

    def _dead(self, function: str) -> dict[str, Any]:
        died = {"state": "dead", "died_at": 1.7e9, "reason": "RetriesExhausted"}
        return {**self._event(function), **died, "error_type": self.text, "error": self.text, "stack": [self.text]}


_verified: Callable[[], PageSources] = FakePageSources
