"""What the worker has observed, as the APIs show it: logs, traces and numbers.

Owns nothing: the observations own their books.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sockd.base.telemetry import LogRecord
from sockd.functions.registry.registry import Registry
from sockd.http.worker_values import Tree
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import WORKER, Minute
from sockd.observe.observations import Observations
from sockd.observe.recent import RecentRates
from sockd.observe.trace_spans import describe, summary
from sockd.observe.traces import TraceKind
from sockd.worker.for_apis.live import live
from sockd.worker.for_apis.status_views import status, tree_snapshot
from sockd.worker.worker import Worker

REPORT_DEADLINE_S = 1.0
"""How long a request for a trace waits for the report of its initscript, which arrives after the function's answer."""


class Logs:
    """As `sockd.http.worker.Logs`."""

    def __init__(self, registry: Registry, observations: Observations) -> None:
        self._registry = registry
        self._observations = observations

    def tail(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self._registry.get(name)
        return self._observations.logs.tail(name, request_id=request_id, limit=limit)

    async def find(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        self._registry.get(name)
        return await self._observations.find_logs(name, request_id, since_s, limit)

    async def follow(self, name: str) -> AsyncIterator[LogRecord]:
        self._registry.get(name)
        with self._observations.logs.follow(name) as records:
            async for record in records:
                yield record


class Traces:
    """As `sockd.http.worker.Traces`."""

    def __init__(self, observations: Observations) -> None:
        self._traces = observations.traces
        self._failure_groups = observations.failure_groups

    def last(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        return [summary(trace) for trace in self._traces.last(limit, function, kind)]

    async def get(self, request_id: str, functions: Sequence[str] = ()) -> dict[str, Any]:
        trace = self._traces.get(request_id, functions)
        if trace.run is not None:
            await asyncio.wait([trace.run.done], timeout=REPORT_DEADLINE_S)
        return describe(trace, self._traces.why(trace))

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        return self._failure_groups.last(limit, function)


class Numbers:
    """As `sockd.http.worker.Numbers`."""

    def __init__(
        self,
        worker: Worker,
        observations: Observations,
        of_events: Callable[[], dict[str, Any]],
        url: Callable[[], str],
    ) -> None:
        """Args: of_events: the part of the status that asynchronous invocations have; url: where the public port is."""
        self._worker = worker
        self._observations = observations
        self._of_events = of_events
        self._url = url
        self.started_s = time.time()

    def status(self) -> dict[str, Any]:
        return {
            "url": self._url(),
            "pid": os.getpid(),
            "uptime_s": time.time() - self.started_s,
            "limits": self._limits(),
            **status(self._worker),
            **self._of_events(),
        }

    def _limits(self) -> dict[str, int]:
        """Return the limits of what clients send."""
        config = self._worker.config
        return {
            "payload_bytes": config.http.max_payload_bytes,
            "archive_bytes": config.code.max_zip_bytes,
            "code_bytes": config.code.max_code_bytes,
            "code_files": config.code.max_files,
            "initscript_bytes": config.initscripts.max_module_kb * 1024,
        }

    def tree(self) -> Tree:
        return tree_snapshot(self._worker)

    async def metrics(self) -> bytes:
        return await self._observations.metrics.page()

    def live(self, limit: int) -> dict[str, Any]:
        return live(self._worker, self._observations.recent, limit)

    def services(self) -> list[dict[str, Any]]:
        return self._worker.services.rows()

    def recent_rates(self, name: str) -> RecentRates:
        return self._observations.recent.of(name, time.monotonic_ns())

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        return self._observations.history.of(WORKER if name is None else name, time.time())
