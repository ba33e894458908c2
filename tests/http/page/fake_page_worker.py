"""A worker for the page's tests: what it tells can be set to anything, hostile texts included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sockd import errors
from sockd.http.page.worker import PageWorker
from sockd.http.worker_api import Tree, TreeNode
from sockd.lambdas.recent import NOTHING, SLOTS, Lately
from sockd.lambdas.traces import TraceKind
from sockd.telemetry import FunctionInfo, LogRecord
from tests.http.fake_worker import LIVE, TRACE, FakeWorker, info

MS = 1_000_000
REQUEST_ID = TRACE["request_id"]
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
    "caches": {
        "handler": {"hits": 90, "misses": 10},
        "import": {"full": 3, "partial": 1, "missed": 0, "unneeded": 6, "passed_over": 1},
        "install": {"hits": 1, "misses": 1},
    },
}


class FakePageWorker(FakeWorker):
    """`names` has functions; `text` is what each of them prints, raises and is made of."""

    def __init__(self, *names: str, text: str = "plain") -> None:
        super().__init__()
        self.names = set(names)
        self.text = text
        self.rate = 2.0
        self.read = 0
        """How often it was looked at."""

    def live(self, limit: int) -> dict[str, Any]:
        self.read += 1
        row = LIVE["functions"][0]
        worker = {**LIVE["worker"], "functions": len(self.names), "rate": self.rate}
        return {**LIVE, "worker": worker, "functions": [{**row, "name": name} for name in sorted(self.names)][:limit]}

    def lately(self, name: str) -> Lately:
        if name not in self.names:
            return NOTHING
        return Lately(120, self.rate, MS, 4 * MS, 0.1, 3, (self.rate,) * SLOTS)

    def function(self, name: str) -> FunctionInfo:
        super().function(name)
        return msgspec.structs.replace(info(name), handler=self.text, packages=[f"{self.text}==1.0"])

    def logs(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self.function(name)
        return [LogRecord(REQUEST_ID, 1_700_000_000.0, self.text.encode("utf-8", "surrogatepass"), 7)][:limit]

    def status(self) -> dict[str, Any]:
        return {**super().status(), **COUNTS}

    def tree(self) -> Tree:
        child = TreeNode(
            packages=["numpy==2.3.0", f"{self.text}==1"], unique_memory_bytes=9 << 20, shared_memory_bytes=1
        )
        root = TreeNode(packages=[], unique_memory_bytes=6 << 20, children=[child])
        return Tree(root=root, refused=[{"package": "grpcio==1.0", "reason": self.text}])

    def traces(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        return [{**TOLD, "function": name, "outcome": self.text} for name in sorted(self.names)][:limit]

    async def trace(self, request_id: str) -> dict[str, Any]:
        if request_id != REQUEST_ID:
            raise errors.NoSuchFunction(f"no invocation {request_id!r}")
        spans = [*TOLD["spans"], {**TOLD["spans"][0], "track": "rpc", "name": self.text, "detail": self.text}]
        critical = [*TOLD["critical"], {"name": f"read {self.text}", "ns": MS}, {"name": self.text, "ns": MS}]
        function = sorted(self.names)[0] if self.names else "gone"
        imported = [{"package": self.text, "modules": 1, "ns": 1}]
        changed = {
            "outcome": self.text,
            "error": self.text,
            "stack": [self.text],
            "spans": spans,
            "critical": critical,
            "function": function,
            "imported": imported,
        }
        return {**TOLD, **changed, "log": self.text, "why": "Because.", "zygote": self.text}


_verified: Callable[[], PageWorker] = FakePageWorker
