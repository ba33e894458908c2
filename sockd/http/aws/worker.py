"""The interface of the worker for this API: `WorkerApi`, and members for AWS's shapes.

Owns nothing. Fulfilled by the daemon.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sockd.base.errors import SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.events.event_configs import EventInvokeConfig
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.deploy_check import FailedDeploy
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.registry.publications import Publication
from sockd.functions.serving.restoring import Unready
from sockd.functions.versions import Described
from sockd.http.run.worker_api import EventsApi, VersionsApi, WorkerApi


class Details(NamedTuple):
    """One version of a function, with its environment: not for everybody's eyes."""

    record: FunctionRecord
    config: FunctionConfig
    publication: Publication | None = None
    """None: it is $LATEST."""
    failed: FailedDeploy | None = None
    """The last deploy of $LATEST, if its new version did not start."""
    unready: Unready | None = None
    """What $LATEST lacks, if it cannot run."""
    snapshot: str = ""
    """The state of its snapshot (`FunctionInfo.snapshot`)."""

    @classmethod
    def of(cls, described: Described) -> Details:
        """Raises: SecretsLocked."""
        return cls(described.record, described.record.settings, described.publication)

    @property
    def version(self) -> str:
        """Its published number, or $LATEST."""
        return str(self.publication.number) if self.publication else LATEST


class InvocationResult(NamedTuple):
    """One invocation and what it printed."""

    invocation: Invocation
    error: SockdError | None
    """The error that the client gets instead of an answer."""
    log: bytes
    memory_mb: int
    """What its sandbox may use."""
    peak_bytes: int
    """The most that its sandbox has used; 0: that is not known."""
    json_log_level: str = ""
    """The level of the platform's events in a log of JSON; empty if the log is text."""
    failure: SockdError | None = None
    """How it failed, also behind a complete answer."""


class LambdaEvents(EventsApi, Protocol):
    """Asynchronous invocation, and how it is to end (`sockd.events.events`)."""

    def event_config(self, name: str, qualifier: str) -> EventInvokeConfig | None: ...
    def event_configs(self, name: str) -> list[EventInvokeConfig]: ...
    async def put_event_config(self, wanted: EventInvokeConfig) -> EventInvokeConfig: ...
    async def remove_event_config(self, name: str, qualifier: str) -> bool: ...


class LambdaWorker(WorkerApi, VersionsApi, Protocol):
    """What this API may ask of the worker."""

    @property
    def urls(self) -> FunctionUrls:
        """The functions' URLs."""

    @property
    def url(self) -> str:
        """Where the public port is, such as http://127.0.0.1:5000."""

    @property
    def events(self) -> LambdaEvents:
        """Asynchronous invocations."""

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """As `invoke`, with the log. An error of the function is in the result; others raise SockdError."""

    def details(self, name: str, qualifier: str = "") -> Details:
        """What was deployed last, or what a number or an alias means. Raises: NoSuchFunction, NoSuchVersion."""

    def all_details(self) -> list[Details]:
        """The current versions of all functions, by name."""

    async def configure(self, name: str, changes: dict[str, Any]) -> None:
        """Change settings, keys of `sockd.toml`, and leave the code as it is.

        Raises: NoSuchFunction, BadFunctionConfig, NoCapacity."""

    async def check_archive(self, zip_path: Any) -> None:
        """Whether a zip could be deployed, as far as the archive itself tells. Raises: BadArchive, StorageFull."""

    def default_concurrency(self) -> int:
        """What a function may run at once unless its own settings say."""

    def sandboxes_that_fit(self) -> int:
        """How many sandboxes of the default size the worker's memory holds."""
