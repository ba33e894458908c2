"""The interface of the worker for the HTTP APIs: one Protocol, implemented by the daemon.

Owns nothing. Expected errors are SockdErrors. One raised by `invoke` may have data of the invocation in
`invocation: Invocation | None`, for the answer's headers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Ending, FunctionInfo, Invocation, LogRecord, TraceContext
from sockd.functions.versions import Versions
from sockd.observe.traces import TraceKind

Progress = Callable[[str], None]
"""Takes one line of progress, for a person; never waits."""


class TreeNode(TypedDict):
    """One Zygote. A reader treats every key but `packages` as optional."""

    packages: list[str]
    """What it has imported beyond its parent's, as `name==version`; empty for a root Zygote."""
    network: NotRequired[str]
    """The network of the functions that the Zygote serves. Each kind of network has a root of its own."""
    interpreter: NotRequired[str]
    """The interpreter of the functions that the Zygote serves, such as `python:3.13`; empty for the worker's own."""
    modules: NotRequired[int]
    unique_memory_bytes: NotRequired[int]
    shared_memory_bytes: NotRequired[int]
    """With its parent and others; both as they were when it began to serve."""
    rate: NotRequired[float]
    """Forks per second, recently."""
    spares: NotRequired[int]
    starts: NotRequired[int]
    """Sandboxes forked from it so far."""
    saved_s: NotRequired[float]
    """Import time that those starts were spared."""
    passed_over: NotRequired[list[str]]
    """Why it did not serve functions that have all of its packages, a few reasons."""
    children: NotRequired[list[TreeNode]]


class TemplateRow(TypedDict):
    """One version that is to have a snapshot."""

    function: str
    version: str
    """$LATEST, or its published number."""
    state: str
    """waiting, making, serving, refused or evicted."""
    reason: str
    """Why there is none now."""
    memory_bytes: int
    """What it holds of the memory budget."""
    init_s: float
    """What it saves each start."""
    starts: int
    spares: int
    """Children that wait for a request."""
    losses: int
    """How often it has ended by itself."""


class Tree(TypedDict):
    """The Zygote tree, and the packages that no Zygote may import."""

    root: TreeNode | None
    templates: NotRequired[list[TemplateRow]]
    """The versions that are to have a snapshot."""
    refused: list[dict[str, Any]]
    """`{"package": "name==version", "reason": ..., "zygote": packages of the Zygote that failed, "tries", "retry_in_s"}`"""


class VersionsApi(Protocol):
    """Published versions and aliases. What ends one also takes back its URL, its schedules and how its events end."""

    @property
    def versions(self) -> Versions:
        """All else about them."""

    async def delete_version(self, name: str, number: int) -> None:
        """As `Versions.delete`."""

    async def delete_alias(self, name: str, alias: str) -> None:
        """As `Versions.delete_alias`."""


class EventsApi(Protocol):
    """Asynchronous invocation, as every door has it (`sockd.events.events`)."""

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


class WorkerApi(Protocol):
    """The worker's methods for the HTTP APIs."""

    @property
    def events(self) -> EventsApi:
        """Asynchronous invocations."""

    @property
    def draining(self) -> bool:
        """True when new requests are refused."""

    async def invoke(self, request: InvokeRequest) -> Invocation:
        """Run a function once. Raises: SockdError."""

    def begin(self, request: InvokeRequest, done: Callable[[Ending], None], /) -> Callable[[], object] | None:
        """Begin what `invoke` does without a task. `done` is called with what `invoke` would return or raise, after this has
        returned.

        Returns: a function that cancels the request without calling `done`, or None if nothing was begun: use `invoke`."""

    def is_app(self, name: str) -> bool:
        """Whether a function is known to be a web app, to which a request's headers belong."""

    def call_key(self, name: str) -> bytes | None:
        """What a function's deployer signs calls with (`sockd.base.call_signature`); None: no calls of it are signed."""

    def incarnation(self, name: str, qualifier: str = "") -> str:
        """What tells a function from one that had its name before and was removed; empty: there is none, or no such version."""

    async def record(self, request: InvokeRequest) -> Mapping[str, Any]:
        """Run a function once in a new sandbox and tell what it read: `request_id`, `event`, `answer`, `reads`.

        Raises: SockdError, as `invoke`; BadInitscript, when this worker cannot listen."""

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
            initscript: a WebAssembly module beside the code.
        Raises: BadArchive, BadFunctionConfig, BadInitscript, PackagesFailed."""

    async def deploy_initscript(self, name: str, initscript: bytes, progress: Progress) -> FunctionInfo:
        """Give a function another initscript, all else unchanged. Raises: NoSuchFunction, BadInitscript."""

    async def remove(self, name: str) -> None:
        """Forget a function. Raises: NoSuchFunction."""

    def functions(self) -> list[FunctionInfo]:
        """All functions, by name."""

    def function(self, name: str) -> FunctionInfo:
        """One function. Raises: NoSuchFunction."""

    def logs(self, name: str, *, request_id: str | None, limit: int) -> list[LogRecord]:
        """The last `limit` records kept in memory, oldest first. Raises: NoSuchFunction."""

    async def find_logs(self, name: str, *, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        """The last `limit` records of all that are kept, oldest first.

        Args: request_id: the beginning of an id, or empty; since_s: Unix time. Raises: NoSuchFunction."""

    def follow_logs(self, name: str) -> AsyncIterator[LogRecord]:
        """Records as they come, from the first step on (which subscribes before it waits), until it is closed."""

    def status(self) -> Mapping[str, Any]:
        """For `/status`: JSON-able; `url` is where the public door listens."""

    def tree(self) -> Tree:
        """The Zygote tree as it is now."""

    def packages(self) -> list[dict[str, Any]]:
        """The install cache: `key`, `name`, `version`, `size_bytes`, `functions` that use it; `reason`, `zygote`, `tries` and
        `retry_in_s` if no Zygote imports it for now."""

    async def add_packages(self, requirements: str, progress: Progress) -> list[str]:
        """Resolve and install; returns the keys of the closure. Raises: PackagesFailed."""

    def forgive_packages(self, name: str | None) -> list[str]:
        """Let Zygotes import a package again at once, by its name or key, or all; the keys that were refused."""

    async def remove_package(self, key: str) -> None:
        """Delete one distribution. Raises: SockdError: 404 if there is none, 400 if it is in use."""

    def traces(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[dict[str, Any]]:
        """The last invocations, or those of one function, or of one kind, newest first, without their spans."""

    async def trace(self, request_id: str) -> dict[str, Any]:
        """One invocation with its spans, by its id or a beginning of it; an initscript's report is waited for, shortly.

        Raises: SockdError 404."""

    async def metrics(self) -> bytes:
        """Prometheus text."""

    def imports(self, name: str) -> Mapping[str, Any]:
        """A function's packages, and what importing each costs: `packages`, of each `package`, `ms`, `in_zygote`, `refused`,
        `modules`. Raises: NoSuchFunction."""

    def live(self, limit: int) -> Mapping[str, Any]:
        """What `sockd top` shows: `worker`, and of the `limit` busiest functions a row each in `functions`."""
