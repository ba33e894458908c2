"""The daemon: the worker with its doors open, from `sockd up` to SIGTERM.

Owns the worker, the two HTTP servers and the process's signals. SIGTERM and SIGINT drain: no new request, those under way
end, then everything is taken down, upper layers first. SIGKILL needs nothing: the next start finds the cgroups and the
lock, and everything else went with the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import Route

from sockd.code.function_config import FunctionConfig
from sockd.functions.debugging import ReportProgress
from sockd.functions.disabling import changes_to_disable, changes_to_enable
from sockd.functions.environments import Environments
from sockd.functions.leased import Outcome
from sockd.functions.serving import serve_request
from sockd.http.access.callers import Callers
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Keys
from sockd.http.access.managers import Managers, ManagersOnly
from sockd.http.aws.access import Access
from sockd.http.aws.door import LambdaApi
from sockd.http.aws.worker import Details, InvocationResult
from sockd.http.front import Front
from sockd.http.management import debug as management_debug
from sockd.http.management import env as management_env
from sockd.http.management import events as management_events
from sockd.http.management import images as management_images
from sockd.http.management import keys as management_keys
from sockd.http.management import schedules as management_schedules
from sockd.http.management import settings as management_settings
from sockd.http.management import urls as management_urls
from sockd.http.management import versions as management_versions
from sockd.http.management.doors import LIMITS, Management
from sockd.http.management.keyed import KeyedManagement, check_listen
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.page.sources import WorkerSources
from sockd.http.run.worker_api import Progress, Tree
from sockd.http.sandbox_front import SandboxFront
from sockd.http.urls.door import UrlDoor
from sockd.http.wire.buffers import BufferBudget, buffer_bytes
from sockd.http.wire.inherited import HTTP, KEYED, MANAGEMENT, RUN, Inherited
from sockd.http.wire.limits import ConnectionLimits
from sockd.http.wire.server import HttpServer
from sockd.http.wire.sockets import parse_listen, url_of
from sockd.kernel.bpf.port_guard import PortGuard
from sockd.networks.networks import Networks
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import WORKER, Minute
from sockd.observe.observations import Observations
from sockd.observe.recent import RecentRates
from sockd.observe.trace_spans import describe, summary
from sockd.observe.traces import TraceKind
from sockd.plain.config import Config, HttpConfig
from sockd.plain.errors import Draining, SockdError
from sockd.plain.invoke_request import InvokeRequest
from sockd.plain.request_ids import request_id_text
from sockd.plain.telemetry import Ending, FunctionInfo, Invocation, LogRecord
from sockd.sandbox.lifecycle import State
from sockd.worker.asynchronous import Asynchronous
from sockd.worker.drain import Drain
from sockd.worker.ending import Ended, Endings, followed, named_sockets, until_ended
from sockd.worker.handover import HandoverDoor
from sockd.worker.import_report import imports
from sockd.worker.live import live
from sockd.worker.notify import READY, notify
from sockd.worker.state_dir import HISTORY, StateDir
from sockd.worker.status_views import package_rows, status, tree_snapshot, watch
from sockd.worker.takeover import Predecessor
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

    def __init__(self, worker: Worker, noted: Observations) -> None:
        """Raises: BadEventStore, BadConfig."""
        self._worker = worker
        self._noted = noted
        self.urls = worker.urls
        self.images = worker.images
        self.started_s = time.time()
        self.environments = Environments(worker.functions)
        self.versions = worker.versions
        self.run_rules = worker.functions.run_rules
        self.error_details = worker.functions.error_details
        self.draining = False
        self.begin: Begin = partial(noted.begin, worker.functions.live)
        """As `WorkerApi.begin`: nothing stands between a request and its function."""
        self.url = ""
        watch(self._noted.metrics, worker)
        self.later = Asynchronous(worker, self.invoke, self._noted.metrics)
        self.events = self.later.events

    async def invoke(self, request: InvokeRequest) -> Invocation:
        """Run a function once. Raises: SockdError, with `invocation` where a sandbox was reached."""
        if self.draining:
            raise Draining("the worker is shutting down")
        function = await self._worker.functions.called(request)
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
        await self._worker.functions.allowances.drain(deadline_s)

    def under_way(self) -> Counter[str]:
        """As `Draining.under_way`."""
        return self._worker.functions.allowances.under_way()

    def is_app(self, name: str) -> bool:
        return self._worker.functions.is_app(name)

    def call_key(self, name: str) -> bytes | None:
        return self._worker.functions.call_key(name)

    def incarnation(self, name: str, qualifier: str = "") -> str:
        return self._worker.functions.incarnation(name, qualifier)

    async def record(self, request: InvokeRequest) -> dict[str, Any]:
        """Run a function once in a new sandbox and tell what it read. Raises: as `invoke`; BadInitscript."""
        if self.draining:
            raise Draining("the worker is shutting down")
        reads: list[AppRead] = []

        async def run() -> Outcome:
            outcome, report = await self._worker.functions.record(request)
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
        running = self._worker.functions.debug(request, port, tell)
        return await self._noted.account(request, running, measured=False)

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """As `invoke`, with what was printed; an error of the function's is in the result."""
        if self.draining:
            raise Draining("the worker is shutting down")
        function = await self._worker.functions.called(request)
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
            version = await self._worker.functions.deploy(name, zip_path, overrides, tell, initscript)
        except SockdError as error:
            _log.warning("deploy of %s: %s: %s", name, error.error_type, error.message)
            raise
        info = self._worker.functions.described(version)
        _log.info(
            "deploy of %s: version %d, packages: %s", name, info.version_number, ", ".join(info.packages) or "none"
        )
        return info

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        """Give a function another initscript."""
        version = await self._worker.functions.deploy_initscript(name, initscript, progress)
        return self._worker.functions.described(version)

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
        await self._worker.functions.configure(name, changes)

    async def disable(self, name: str) -> None:
        """Refuse all requests of a function until it is enabled. Raises: as `configure`."""
        await self.configure(name, changes_to_disable(self._worker.functions.settings(name)))

    async def enable(self, name: str) -> None:
        """Give a function the concurrency that it had. Raises: as `configure`."""
        former = [FunctionConfig.readable(each.config) for each in self.versions.deploys(name)]
        changes = changes_to_enable(self._worker.functions.settings(name), former, self.default_concurrency())
        await self.configure(name, changes)

    async def check_archive(self, zip_path: Path) -> None:
        await self._worker.functions.check(zip_path)

    def details(self, name: str, qualifier: str = "") -> Details:
        details = Details.of(self.versions.get(name, qualifier))
        return details if details.publication is not None else self._with_state(details)

    def all_details(self) -> list[Details]:
        records = self._worker.functions.registry.list()
        return [self._with_state(Details(each, FunctionConfig.readable(each.config))) for each in records]

    def _with_state(self, details: Details) -> Details:
        """Args: details: of $LATEST."""
        name, functions = details.record.name, self._worker.functions
        return details._replace(failed=functions.failed_deploys.get(name), unready=functions.unready(name))

    def default_concurrency(self) -> int:
        return self._worker.config.function.concurrency

    def sandboxes_that_fit(self) -> int:
        return self._worker.budget.total // (self._worker.config.function.memory_mb << 20)

    def functions(self) -> list[FunctionInfo]:
        functions = self._worker.functions
        return [functions.info(name) for name in functions.names()]

    def function(self, name: str) -> FunctionInfo:
        return self._worker.functions.info(name)

    def logs(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        self._worker.functions.check_known(name)
        return self._noted.logs.tail(name, request_id=request_id, limit=limit)

    async def find_logs(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        self._worker.functions.check_known(name)
        return await self._noted.find_logs(name, request_id, since_s, limit)

    async def follow_logs(self, name: str) -> AsyncIterator[LogRecord]:
        self._worker.functions.check_known(name)
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
        await self._worker.packages.remove(key, users=self._worker.functions.users)
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


async def serve(config: Config, inherited: Inherited | None = None, predecessor: Predecessor | None = None) -> Ended:
    """Run a daemon until a signal, the end of the farm, or the worker that takes over.

    Args: inherited: listening sockets that are there already; predecessor: the worker that gave them, notified when this one
    serves.
    Raises: SockdError that says what to do, before anything is served."""
    os.umask(UMASK)
    inherited = inherited or Inherited()
    endings = Endings()
    access = Access.of(config.lambda_api, config.http)
    viewers = PageAccess.of(config)
    managers = Managers.of(config.management)
    if config.management.listen:
        check_listen(config.management)
    async with AsyncExitStack() as stack:
        state = StateDir.open(Path(config.state_dir))
        stack.callback(state.close)
        worker = await Worker.build(config, state, stack, lambda: endings.stop(1))
        observations = Observations.open(config, state.path / "logs", worker.live_output, state.path / HISTORY)
        stack.push_async_callback(observations.aclose)
        worker.functions.failed_inits.note = observations.note_failed_init
        daemon = Daemon(worker, observations)
        stack.push_async_callback(daemon.later.aclose)
        await worker.rebuild_zygotes()
        servers = await _open_doors(
            daemon, access, viewers, managers, config, state, stack, worker.ports, worker.networks, inherited
        )
        endings.watch_stops()
        door = HandoverDoor(state.path, endings.hand_over)
        stack.callback(door.close)
        worker.open_engine([server.port for server in (servers[0], *servers[3:])])
        preloading = asyncio.create_task(worker.preload())
        worker.latency.serving_begun()
        daemon.later.start()
        print(f"sockd is listening on {daemon.url}", flush=True)
        if worker.latency.told:
            print(worker.latency.told, flush=True)
        if config.management.listen:
            where = url_of(config.management.listen, servers[3].port)
            print(f"those with a key manage this worker at {where}", flush=True)
        if open_to_all := open_without_key(config.http):
            print(f"without a key, whoever reaches this address may use {open_to_all}", flush=True)
        notify(READY)
        if predecessor is not None:
            predecessor.tell_serving()
        drain = Drain(daemon, servers, servers[2:], config.http.drain_s)
        ending, kept = await until_ended(endings, drain, lambda: named_sockets(servers, inherited.are_kept))
        preloading.cancel()
        if ending.status:
            print("the farm ended by itself; start sockd again", file=sys.stderr)
        if kept or inherited.are_kept:
            await drain.leave()
        else:
            await drain.finish()
    return await followed(ending, kept, endings)


def open_without_key(config: HttpConfig) -> str:
    """What other machines may use of the port without a signature, and how each is closed; empty on loopback."""
    host, _ = parse_listen(config.listen)
    doors = [name for name in ("run", "status", "metrics") if getattr(config, name) is True]
    if is_loopback(host) or not doors:
        return ""
    return ", ".join(f"/{name} (http.{name} = false closes it)" for name in doors)


def _page(daemon: Daemon, access: PageAccess, callers: Callers, config: Config) -> Page:
    """The page for people."""
    later = daemon.later
    sources = WorkerSources(
        daemon.versions, daemon.urls, later.events, later.schedules, config, worker_url=lambda: daemon.url
    )
    return Page(daemon, sources, access, callers, viewers=config.page.viewers)


async def _open_doors(
    daemon: Daemon,
    access: Access,
    viewers: PageAccess | None,
    managers: Managers,
    config: Config,
    state: StateDir,
    stack: AsyncExitStack,
    ports: PortGuard,
    networks: Networks,
    inherited: Inherited,
) -> list[HttpServer]:
    """The public port, the same functions over a Unix socket that everybody opens, the management socket that only managers
    open, and its port for those with a key, if there is one."""
    limits = ConnectionLimits(connections=config.http.max_connections, stall_s=config.http.stall_s)
    buffers = BufferBudget(buffer_bytes(config.http))
    keys = Keys.open(state.path / "keys.json")
    callers = Callers(config.http, keys, daemon.run_rules, error_details=daemon.error_details)
    lambda_api = LambdaApi(daemon, access, config, state.path / "tmp", callers) if config.lambda_api.enabled else None
    url_door = UrlDoor(daemon, access, config) if config.function_urls.enabled else None
    page = _page(daemon, viewers, callers, config) if viewers is not None else None
    public = Front(daemon, config.http, lambda_api, url_door, page, callers=callers)
    front = HttpServer(
        public,
        inherited.tcp(HTTP, config.http.listen),
        limits=limits,
        keep_alive_s=config.http.keep_alive_s,
        buffers=buffers,
    )
    stack.push_async_callback(front.aclose, 0.0)
    local = HttpServer(
        Front(
            *(daemon, config.http),
            replays=public.replays,
            callers=Callers(
                msgspec.structs.replace(config.http, errors=config.http.errors or "full"),
                *(keys, daemon.run_rules, managers, daemon.error_details),
            ),
        ),
        [inherited.unix(RUN, state.run_socket, 0o666)],
        limits=limits,
        keep_alive_s=config.http.keep_alive_s,
        buffers=buffers,
    )
    stack.push_async_callback(local.aclose, 0.0)
    more = management_routes(daemon, config, keys, state.path / "tmp")
    app = Management(daemon, config, state.path / "tmp", more).app
    mode = 0o600 if managers.gid is None else 0o660
    management = HttpServer(
        ManagersOnly(app, managers),
        [inherited.unix(MANAGEMENT, state.socket, mode, managers.gid)],
        limits=LIMITS,
        buffers=buffers,
    )
    stack.push_async_callback(management.aclose, 0.0)
    servers = [front, local, management]
    if config.management.listen:
        sockets = inherited.tcp(KEYED, config.management.listen)
        keyed = HttpServer(KeyedManagement(app, keys), sockets, limits=LIMITS, buffers=buffers)
        stack.push_async_callback(keyed.aclose, 0.0)
        ports.hold(keyed.port)
        servers.append(keyed)
    inherited.check_taken()
    ports.hold(front.port)
    daemon.url = url_of(config.http.listen, front.port)
    for server in servers:
        await server.start()

    async def serve_functions(sock: socket.socket) -> None:
        app = SandboxFront(
            *(daemon, config.http), replays=public.replays, callers=callers, egress_of=networks.egress_of
        )
        gateway = HttpServer(app, [sock], limits=limits, keep_alive_s=config.http.keep_alive_s, buffers=buffers)
        stack.push_async_callback(gateway.aclose, 0.0)
        await gateway.start()

    await networks.serve_functions(serve_functions)
    return servers


def management_routes(daemon: Daemon, config: Config, keys: Keys, tmp: Path) -> list[Route]:
    """Return the routes of the management API beside those of `Management`. Args: tmp: a directory for uploads."""
    return [
        *management_debug.routes(daemon, config.http.max_payload_bytes),
        *management_env.routes(daemon.environments),
        *management_keys.routes(keys),
        *management_settings.routes(daemon),
        *management_versions.routes(daemon),
        *management_urls.routes(daemon, config),
        *management_images.routes(daemon.images, config.images.max_image_mb << 20, tmp),
        *management_events.routes(daemon.events),
        *management_schedules.routes(daemon.later.schedules, 2 * config.events.max_payload_bytes),
    ]
