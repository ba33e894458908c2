"""The worker, as its APIs use it: one Protocol for each subject, and `Worker` with all of them.

Owns nothing, and names no class of the worker. Expected errors are SockdErrors. One that a call raises may have data of the
invocation in `invocation: Invocation | None`, for the answer's headers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from sockd.base.config import ErrorDetail, RunRule
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Progress
from sockd.base.telemetry import Ending, FunctionInfo, Invocation, LogRecord, TraceContext
from sockd.events.event_configs import EventInvokeConfig
from sockd.functions.provisioning import Status
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_url import Auth, Cors, FunctionUrl, Mode
from sockd.functions.registry.policy import Policy, Statement
from sockd.functions.registry.publications import Publication
from sockd.functions.serving.debugging import ReportProgress
from sockd.functions.versions import Described
from sockd.http.worker_values import Details, InvocationResult, Tree
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import Minute
from sockd.observe.recent import RecentRates
from sockd.observe.traces import TraceKind


class Calls(Protocol):
    """Requests of functions."""

    @property
    def draining(self) -> bool:
        """True when new requests are refused."""

    @property
    def leaving(self) -> bool:
        """True when a proxy in front is to send no more requests; those that come are served all the same."""

    async def invoke(self, request: InvokeRequest) -> Invocation:
        """Run a function once. Raises: SockdError."""

    def begin(self, request: InvokeRequest, done: Callable[[Ending], None], /) -> Callable[[], object] | None:
        """Begin what `invoke` does without a task. `done` is called with what `invoke` would return or raise, after this has
        returned.

        Returns: a function that cancels the request without calling `done`, or None if nothing was begun: use `invoke`."""

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """Run a function once, and say what it printed. An error of the function is in the result; others raise SockdError."""

    async def record(self, request: InvokeRequest) -> Mapping[str, Any]:
        """Run a function once in a new sandbox and say what it read: `request_id`, `event`, `answer`, `reads`.

        Raises: SockdError, as `invoke`; BadInitscript, when this worker cannot listen."""

    async def debug(self, request: InvokeRequest, port: int, tell: ReportProgress) -> Invocation:
        """Run a function once, when a debugger has come to the port; port 0: any that is free. Raises: SockdError."""

    def is_app(self, name: str) -> bool:
        """Whether a function is known to be a web app, to which a request's headers belong."""

    def call_key(self, name: str) -> bytes | None:
        """The key with which a function's deployer signs calls (`sockd.base.call_signature`); None: no calls of it are signed."""

    def incarnation(self, name: str, qualifier: str = "") -> str:
        """An id that distinguishes a function from a removed one of the same name; empty: there is none, or no such version."""


class Functions(Protocol):
    """Functions, and changes of them."""

    @property
    def run_rules(self) -> Mapping[str, RunRule]:
        """Who may call a function at /run, for the functions that are not open to everybody."""

    @property
    def error_details(self) -> Mapping[str, ErrorDetail]:
        """How much of an error /run answers, for the functions that set it."""

    def all(self) -> list[FunctionInfo]:
        """All functions, by name."""

    def info(self, name: str) -> FunctionInfo:
        """One function. Raises: NoSuchFunction."""

    def details(self, name: str, qualifier: str = "") -> Details:
        """The last deploy, or what a number or an alias means. Raises: NoSuchFunction, NoSuchVersion."""

    def all_details(self) -> list[Details]:
        """The last deploys of all functions, by name."""

    def default_concurrency(self) -> int:
        """How many requests a function may run at once unless its own settings say."""

    def sandboxes_that_fit(self) -> int:
        """How many sandboxes of the default size the worker's memory holds."""

    async def deploy(
        self,
        name: str,
        zip_path: Path,
        *,
        overrides: dict[str, Any],
        progress: Progress,
        initscript: bytes | None = None,
    ) -> FunctionInfo:
        """Publish a version and switch to it; cancelling it leaves the current version in place.

        Args:
            zip_path: stays the caller's, who removes it afterwards.
            overrides: keys of `sockd.toml` that win over the file's.
            initscript: a WebAssembly module for the code.
        Raises: BadArchive, BadFunctionConfig, BadInitscript, PackagesFailed."""

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        """Give a function another initscript, all else unchanged. Raises: NoSuchFunction, BadInitscript."""

    async def check_archive(self, zip_path: Path) -> None:
        """Check whether a zip could be deployed, as far as the archive itself says. Raises: BadArchive, StorageFull."""

    async def configure(self, name: str, changes: dict[str, Any], *, is_checked: bool = False) -> None:
        """Change settings, keys of `sockd.toml`, and leave the code as it is.

        Args: is_checked: whether a version whose starts differ is started once before it serves, as a deploy's is.
        Raises: NoSuchFunction, BadFunctionConfig, NoCapacity, VersionFailed."""

    async def disable(self, name: str) -> None:
        """Refuse all requests of a function until it is enabled. Raises: NoSuchFunction, NoCapacity, StorageFull."""

    async def enable(self, name: str) -> None:
        """Give a function the concurrency that it had. Raises: NoSuchFunction, NoCapacity, StorageFull."""

    async def remove(self, name: str) -> None:
        """Forget a function. Raises: NoSuchFunction."""

    async def delete_version(self, name: str, number: int) -> None:
        """Delete a published version, its schedules, and how its events end. Raises: as `Versions` of the worker."""

    async def delete_alias(self, name: str, alias: str) -> None:
        """Delete an alias, its URL, its schedules, and how its events end. Raises: NoSuchFunction, StorageFull."""


class Provisioning(Protocol):
    """Provisioned concurrency (`sockd.functions.provisioning`)."""

    async def put(self, name: str, qualifier: str, wanted: int) -> Status: ...
    def status(self, name: str, qualifier: str) -> Status: ...
    def list(self, name: str) -> list[Status]: ...
    def wanted(self, name: str) -> int: ...
    async def delete(self, name: str, qualifier: str) -> None: ...


class Canaries(Protocol):
    """The guarded versions of aliases (`sockd.functions.deploys.canaries`)."""

    def counts(self, name: str, alias: str) -> tuple[int, int]: ...


class Versions(Protocol):
    """Published versions and aliases (`sockd.functions.versions`)."""

    @property
    def provisioning(self) -> Provisioning: ...
    @property
    def canaries(self) -> Canaries: ...
    async def publish(self, name: str, description: str | None = None) -> Described: ...
    def get(self, name: str, qualifier: str = "") -> Described: ...
    def list(self, name: str) -> Sequence[Publication | None]: ...
    def everything(self) -> Sequence[tuple[str, Publication | None]]: ...
    def described(self, name: str, publication: Publication | None) -> Described: ...
    def deploys(self, name: str) -> Sequence[FunctionRecord]: ...
    async def put_alias(self, alias: Alias) -> Alias: ...
    def alias(self, name: str, alias: str) -> Alias: ...
    def aliases(self, name: str) -> Sequence[Alias]: ...
    async def rollback(self, name: str, number: int | None = None) -> FunctionRecord: ...
    def deploy_before(self, name: str) -> FunctionRecord | None: ...


class Policies(Protocol):
    """Who may call functions (`sockd.functions.registry.function_policies`)."""

    def of(self, name: str, qualifier: str = "") -> Policy: ...
    async def add(self, name: str, qualifier: str, statement: Statement) -> Policy: ...
    async def remove(self, name: str, qualifier: str, id: str) -> Policy: ...


class Urls(Protocol):
    """Function URLs (`sockd.functions.registry.function_urls`)."""

    @property
    def policies(self) -> Policies: ...
    async def create(
        self, name: str, qualifier: str = "", *, auth: Auth = "NONE", mode: Mode = "BUFFERED", cors: Cors | None = None
    ) -> FunctionUrl: ...
    async def update(self, old: FunctionUrl, *, auth: Auth, mode: Mode, cors: Cors | None) -> FunctionUrl: ...
    async def delete(self, name: str, qualifier: str = "") -> None: ...
    def find(self, id_: str) -> FunctionUrl: ...
    def of(self, name: str, qualifier: str = "") -> FunctionUrl: ...
    def all_of(self, name: str) -> list[FunctionUrl]: ...


class InvokeConfigs(Protocol):
    """How asynchronous invocations are to end (`sockd.events.invoke_configs`)."""

    def get(self, function: str, qualifier: str) -> EventInvokeConfig | None: ...
    def all_of(self, function: str) -> list[EventInvokeConfig]: ...
    async def put(self, wanted: EventInvokeConfig) -> EventInvokeConfig: ...
    async def remove(self, function: str, qualifier: str) -> bool: ...


class Events(Protocol):
    """Asynchronous invocation (`sockd.events.events`)."""

    @property
    def invoke_configs(self) -> InvokeConfigs: ...

    async def accept(
        self,
        name: str,
        qualifier: str,
        payload: bytes,
        *,
        source: str,
        retry_key: str = "",
        trace: TraceContext | None = None,
    ) -> str:
        """Run a function asynchronously, at least once. Returns the request id of its attempts when the event is stored.

        Args: retry_key: what a retry of this very call has in common with it; within some minutes it is no other event.
        Raises: NoSuchFunction, RequestTooLarge, TooManyRequests, Draining, StorageFull."""


class PeerAnswer(Protocol):
    """The answer of another worker of the group, from its head on."""

    @property
    def status(self) -> int: ...
    @property
    def fields(self) -> Mapping[str, str]:
        """Its headers, by name in lower case."""

    @property
    def is_endless(self) -> bool:
        """Whether it comes in parts, for as long as there is something to say."""

    def parts(self) -> AsyncGenerator[bytes]:
        """The body in parts as they come. Raises: WorkerSilent."""

    async def body(self) -> bytes:
        """The whole body. Raises: WorkerSilent."""


class Group(Protocol):
    """The workers that share a database with this one, and its own place among them."""

    @property
    def name(self) -> str:
        """The group's name; empty: there is none."""

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """The workers of the group: `name`, `state` (serving, draining or gone), what each reports of itself, `seen_s` since its
        last report, `events` that it has, who took them over, and whether it is this one (`here`).

        Raises: BadRequest: there is no group; DatabaseUnavailable."""

    def ask(self, worker: str, target: bytes, authorization: bytes) -> AbstractAsyncContextManager[PeerAnswer]:
        """Ask a worker of the group for what its management API has, for the length of a block.

        Args: target: path and query; authorization: the key of the client that asks, or empty.
        Raises: BadRequest: there is no group; NoSuchWorker, WorkerSilent, NoCapacity, DatabaseUnavailable."""

    async def drain(self, *, draining: bool) -> None:
        """Have a proxy in front send this worker no requests, or send them again. Raises: DatabaseUnavailable."""


class Packages(Protocol):
    """The packages of the install cache."""

    def all(self) -> list[dict[str, Any]]:
        """The install cache: `key`, `name`, `version`, `size_bytes`, `functions` that use it; `reason`, `zygote`, `tries` and
        `retry_in_s` if no Zygote imports it for now."""

    async def add(self, requirements: str, progress: Progress) -> list[str]:
        """Resolve and install; returns the keys of the closure. Raises: PackagesFailed."""

    def forgive(self, name: str | None) -> list[str]:
        """Let Zygotes import a package again at once, by its name or key, or all; the keys that were refused."""

    async def remove(self, key: str) -> None:
        """Delete one distribution. Raises: SockdError: 404 if there is none, 400 if it is in use."""

    def imports(self, name: str) -> Mapping[str, Any]:
        """A function's packages, and what importing each costs: `packages`, of each `package`, `ms`, `ahead_ms`, `in_zygote`,
        `shareable`, `refused`, `modules`; and `standard`, with `ms` and `ahead_ms` of the standard library's modules. Raises:
        NoSuchFunction."""


class Logs(Protocol):
    """What functions print."""

    def tail(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        """The last `limit` records kept in memory, oldest first. Raises: NoSuchFunction."""

    async def find(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        """The last `limit` records of all that are kept, oldest first.

        Args: request_id: the beginning of an id, or empty; since_s: Unix time. Raises: NoSuchFunction."""

    def follow(self, name: str) -> AsyncIterator[LogRecord]:
        """Records as they come, from the first step on (which subscribes before it waits), until it is closed."""


class Traces(Protocol):
    """The last invocations."""

    def last(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        """The last invocations, or those of one function, or of one kind, newest first, without their spans."""

    async def get(self, request_id: str, functions: Sequence[str] = ()) -> dict[str, Any]:
        """One invocation with its spans, by its id or a beginning of it; an initscript's report is waited for, shortly.

        Raises: SockdError 404."""

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        """The failures since the worker started, grouped, those that failed last first. Args: function: of this one only."""


class Numbers(Protocol):
    """The worker in numbers. Reading costs microseconds for each function or node that is returned."""

    @property
    def started_s(self) -> float:
        """When the worker started, in Unix time."""

    def status(self) -> Mapping[str, Any]:
        """For `/status`: JSON-able; `url` is where the public port listens."""

    def tree(self) -> Tree:
        """The Zygote tree as it is now."""

    async def metrics(self) -> bytes:
        """Prometheus text."""

    def live(self, limit: int) -> Mapping[str, Any]:
        """What `sockd top` shows: `worker`, and of the `limit` busiest functions a row each in `functions`."""

    def services(self) -> Sequence[Mapping[str, Any]]:
        """The services, by name, as `sockd ps` shows them."""

    def recent_rates(self, name: str) -> RecentRates:
        """What happened to a function in the last minute."""

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        """The last hour of a function, or of the worker, by minute, the oldest first, as `History.of`."""


class Worker(Protocol):
    """One worker."""

    @property
    def url(self) -> str:
        """The address of the public port, such as http://127.0.0.1:5000."""

    @property
    def calls(self) -> Calls: ...
    @property
    def functions(self) -> Functions: ...
    @property
    def versions(self) -> Versions: ...
    @property
    def urls(self) -> Urls: ...
    @property
    def events(self) -> Events: ...
    @property
    def group(self) -> Group: ...
    @property
    def packages(self) -> Packages: ...
    @property
    def logs(self) -> Logs: ...
    @property
    def traces(self) -> Traces: ...
    @property
    def numbers(self) -> Numbers: ...
