"""The daemon: the worker as its doors see it (`doors` opens them, `run` is its life from start to end).

Owns the asynchronous invocations. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sockd.base.errors import Draining, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import request_id_text
from sockd.base.telemetry import Ending, FunctionInfo, Invocation, LogRecord
from sockd.functions.deploys.disabling import changes_to_disable, changes_to_enable
from sockd.functions.environments import Environments
from sockd.functions.serving import development_calls
from sockd.functions.serving.debugging import ReportProgress
from sockd.functions.serving.leased import Outcome
from sockd.functions.serving.serving import serve_request
from sockd.http.aws.worker import Details, InvocationResult
from sockd.http.run.worker_api import Progress, Tree
from sockd.isolation.sandbox.lifecycle import State
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import WORKER, Minute
from sockd.observe.observations import Observations
from sockd.observe.recent import RecentRates
from sockd.observe.trace_spans import describe, summary
from sockd.observe.traces import TraceKind
from sockd.worker.asynchronous import Asynchronous, StoredEvents
from sockd.worker.import_report import imports
from sockd.worker.live import live
from sockd.worker.status_views import package_rows, status, tree_snapshot, watch
from sockd.worker.worker import Worker
from sockd_initscripts.report import AppRead

_log = logging.getLogger(__name__)

Begin = Callable[[InvokeRequest, Callable[[Ending], None]], Callable[[], object] | None]
UMASK = 0o022
"""What is secret has a mode of its own; the rest is read by confined processes, which are other users. Functions inherit it."""
REPORT_DEADLINE_S = 1.0
"""How long somebody who asks for a trace waits for its initscript's report, which comes after the answer."""


class Daemon:
    """What the doors talk to (`sockd.http.run.worker_api.WorkerApi`)."""

    def __init__(self, worker: Worker, noted: Observations, stored_events: StoredEvents) -> None:
        """Raises: BadConfig."""
        self._worker = worker
        self._noted = noted
        self.urls = worker.urls
        self.images = worker.images
        self.started_s = time.time()
        self.environments = Environments(worker.functions.live, worker.functions.changes)
        self.versions = worker.versions
        self.run_rules = worker.functions.live.door_settings.run_rules
        self.error_details = worker.functions.live.door_settings.error_details
        self.draining = False
        self.begin: Begin = partial(noted.begin, worker.functions.live.by_name)
        """As `WorkerApi.begin`: nothing stands between a request and its function."""
        self.url = ""
        watch(self._noted.metrics, worker)
        self.later = Asynchronous(worker, stored_events, self.invoke, self._noted.metrics)
        self.events = self.later.events

    async def invoke(self, request: InvokeRequest) -> Invocation:
        """Run a function once. Raises: SockdError, with `invocation` where a sandbox was reached."""
        if self.draining:
            raise Draining("the worker is shutting down")
        function = await self._worker.functions.live.called(request)
        running = self._noted.account(request, serve_request(function, request))
        return await self.versions.canaries.watched(request, function.version.number, running)

    def drain(self) -> None:
        """As `Draining.drain`."""
        self.draining = True
        self.begin = lambda request, done: None
        self.later.stop()
        self._worker.functions.debugging.close()
        self._noted.logs.end_followers()

    async def pause_events(self, deadline_s: float) -> None:
        """As `Draining.pause_events`."""
        await self.events.pause(deadline_s)

    def resume_events(self) -> None:
        """As `Draining.resume_events`."""
        self.events.resume()

    async def drained(self, deadline_s: float) -> None:
        """As `Draining.drained`."""
        await self._worker.functions.live.allowances.drain(deadline_s)

    def under_way(self) -> Counter[str]:
        """As `Draining.under_way`."""
        return self._worker.functions.live.allowances.under_way()

    def is_app(self, name: str) -> bool:
        return self._worker.functions.live.is_app(name)

    def call_key(self, name: str) -> bytes | None:
        return self._worker.functions.live.call_key(name)

    def incarnation(self, name: str, qualifier: str = "") -> str:
        return self._worker.functions.live.incarnation(name, qualifier)

    async def record(self, request: InvokeRequest) -> dict[str, Any]:
        """Run a function once in a new sandbox and tell what it read. Raises: as `invoke`; BadInitscript."""
        if self.draining:
            raise Draining("the worker is shutting down")
        reads: list[AppRead] = []

        async def run() -> Outcome:
            function = await self._worker.functions.live.called(request)
            outcome, report = await development_calls.record(self._worker.initscripts, function, request)
            reads.extend(report.reads)
            return outcome

        invocation = await self._noted.account(request, run())
        return {
            "request_id": request_id_text(request.id),
            "event": msgspec.Raw(request.payload),
            "answer": msgspec.Raw(invocation.body),
            "reads": reads,
        }

    async def debug(self, request: InvokeRequest, port: int, tell: ReportProgress) -> Invocation:
        """Run a function once, when a debugger has come to the port."""
        if self.draining:
            raise Draining("the worker is shutting down")
        functions = self._worker.functions

        async def run() -> Outcome:
            function = await functions.live.called(request)
            return await development_calls.debug(functions.debugging, function, request, port, tell)

        return await self._noted.account(request, run(), measured=False)

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """As `invoke`, with what was printed; an error of the function's is in the result."""
        if self.draining:
            raise Draining("the worker is shutting down")
        function = await self._worker.functions.live.called(request)
        told: list[tuple[Outcome, int]] = []

        async def run() -> Outcome:
            outcome = await serve_request(function, request)
            sandbox = outcome.leased.sandbox
            # Now, as the loop's next step may give the cgroup to another.
            is_there = sandbox.state is State.IDLE
            told.append((outcome, sandbox.process.peak_bytes() if is_there else outcome.reply.peak_bytes))
            return outcome

        error: SockdError | None = None
        try:
            running = self._noted.account(request, run())
            await self.versions.canaries.watched(request, function.version.number, running)
        except SockdError as failed:
            if not told:
                raise
            error = failed
        outcome, peak_bytes = told[0]
        reply, sandbox = outcome.reply, outcome.leased.sandbox
        memory_mb, level = sandbox.process.limits.memory_bytes >> 20, outcome.json_log_level
        return InvocationResult(outcome.invocation, error, reply.log, memory_mb, peak_bytes, level, reply.error)

    async def deploy(
        self,
        name: str,
        zip_path: Path,
        *,
        overrides: dict[str, Any],
        progress: Progress,
        initscript: bytes | None = None,
    ) -> FunctionInfo:
        """Publish a version and switch to it; how that went stays in the worker's own log."""

        def tell(line: str) -> None:
            _log.info("deploy of %s: %s", name, line)
            progress(line)

        try:
            version = await self._worker.functions.deploys.deploy(name, zip_path, overrides, tell, initscript)
        except SockdError as error:
            _log.warning("deploy of %s: %s: %s", name, error.error_type, error.message)
            raise
        info = self._worker.functions.views.described(version)
        _log.info(
            "deploy of %s: version %d, packages: %s", name, info.version_number, ", ".join(info.packages) or "none"
        )
        return info

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        """Give a function another initscript."""
        version = await self._worker.functions.changes.deploy_initscript(name, initscript, progress)
        return self._worker.functions.views.described(version)

    async def remove(self, name: str) -> None:
        """Forget a function, its logs and its numbers."""
        removing = self._worker.reserve.removing
        self.versions.provisioning.forget(name)
        await removing(lambda: self._worker.functions.remove(name))
        await removing(lambda: self.later.forget(name))
        self._noted.forget(name)

    async def delete_version(self, name: str, number: int) -> None:
        removing = self._worker.reserve.removing
        await removing(lambda: self.versions.delete(name, number))
        await removing(lambda: self.later.forget_qualifier(name, str(number)))

    async def delete_alias(self, name: str, alias: str) -> None:
        removing = self._worker.reserve.removing

        async def delete() -> None:
            self.versions.delete_alias(name, alias)

        await removing(delete)
        await removing(lambda: self.later.forget_qualifier(name, alias))

    async def configure(self, name: str, changes: dict[str, Any]) -> None:
        """Change settings of a function, not its code."""
        await self._worker.functions.changes.configure(name, changes)

    async def disable(self, name: str) -> None:
        """Refuse all requests of a function until it is enabled. Raises: as `configure`."""
        await self.configure(name, changes_to_disable(self._worker.functions.live.settings(name)))

    async def enable(self, name: str) -> None:
        """Give a function the concurrency that it had. Raises: as `configure`."""
        former = [each.readable for each in self.versions.deploys(name)]
        changes = changes_to_enable(self._worker.functions.live.settings(name), former, self.default_concurrency())
        await self.configure(name, changes)

    async def check_archive(self, zip_path: Path) -> None:
        await self._worker.functions.deploys.check_archive(zip_path)

    def details(self, name: str, qualifier: str = "") -> Details:
        details = Details.of(self.versions.get(name, qualifier))
        if details.publication is None:
            return self._with_state(details)
        return details._replace(snapshot=self._worker.functions.snapshots.state(name, details.publication.number))

    def all_details(self) -> list[Details]:
        records = self._worker.functions.registry.list()
        return [self._with_state(Details(each, each.readable)) for each in records]

    def _with_state(self, details: Details) -> Details:
        """Args: details: of $LATEST."""
        name, functions = details.record.name, self._worker.functions
        snapshot = functions.snapshots.state(name)
        failed, unready = functions.switching.failed.get(name), functions.live.restoring.unready.get(name)
        return details._replace(failed=failed, unready=unready, snapshot=snapshot)

    def default_concurrency(self) -> int:
        return self._worker.config.function.concurrency

    def sandboxes_that_fit(self) -> int:
        return self._worker.budget.total // (self._worker.config.function.memory_mb << 20)

    def functions(self) -> list[FunctionInfo]:
        return self._worker.functions.views.all()

    def function(self, name: str) -> FunctionInfo:
        return self._worker.functions.views.info(name)

    def logs(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self._worker.functions.registry.get(name)
        return self._noted.logs.tail(name, request_id=request_id, limit=limit)

    async def find_logs(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        self._worker.functions.registry.get(name)
        return await self._noted.find_logs(name, request_id, since_s, limit)

    async def follow_logs(self, name: str) -> AsyncIterator[LogRecord]:
        self._worker.functions.registry.get(name)
        with self._noted.logs.follow(name) as records:
            async for record in records:
                yield record

    def status(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "pid": os.getpid(),
            "uptime_s": time.time() - self.started_s,
            "limits": self._limits(),
            **status(self._worker),
            **self.later.status(),
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

    def packages(self) -> list[dict[str, Any]]:
        return package_rows(self._worker)

    async def add_packages(self, requirements: str, progress: Progress) -> list[str]:
        packages = self._worker.packages
        progress("resolving")
        closure = await packages.resolve(requirements)
        await packages.ensure(closure, progress=progress)
        return sorted(closure.keys)

    def forgive_packages(self, name: str | None) -> list[str]:
        forgiven = {*self._worker.learner.forgive(name), *self._worker.verifier.forgive(name)}
        return sorted(forgiven)

    async def remove_package(self, key: str) -> None:
        await self._worker.packages.remove(key, users=self._worker.functions.package_users.of)
        self._worker.learner.forget(key)

    def traces(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        return [summary(trace) for trace in self._noted.traces.last(limit, function, kind)]

    async def trace(self, request_id: str) -> dict[str, Any]:
        trace = self._noted.traces.get(request_id)
        if trace.run is not None:
            await asyncio.wait([trace.run.done], timeout=REPORT_DEADLINE_S)
        return describe(trace, self._noted.traces.why(trace))

    async def metrics(self) -> bytes:
        return await self._noted.metrics.page()

    def recent_rates(self, name: str) -> RecentRates:
        return self._noted.recent.of(name, time.monotonic_ns())

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        return self._noted.history.of(WORKER if name is None else name, time.time())

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        return self._noted.failure_groups.last(limit, function)

    def imports(self, name: str) -> dict[str, Any]:
        return imports(self._worker, name)

    def live(self, limit: int) -> dict[str, Any]:
        return live(self._worker, self._noted.recent, limit)
