"""The interface of the worker for the page: `WorkerApi`, and members that only the page shows.

Owns nothing. Fulfilled by the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sockd.base.config import RunRule
from sockd.base.invoke_request import InvokeRequest
from sockd.http.aws.worker import InvocationResult
from sockd.http.run.worker_api import WorkerApi
from sockd.observe.failure_groups import FailureGroup
from sockd.observe.history import Minute
from sockd.observe.recent import RecentRates


class PageWorker(WorkerApi, Protocol):
    """What the page may ask of the worker. Reading costs microseconds for each function, node or trace that is returned."""

    @property
    def run_rules(self) -> Mapping[str, RunRule]:
        """Who may call a function at /run, of those that are not open to everybody."""

    def recent_rates(self, name: str) -> RecentRates:
        """What happened to a function in the last minute."""

    @property
    def started_s(self) -> float:
        """When the worker started, in Unix time."""

    def history(self, name: str | None = None) -> Sequence[tuple[int, Minute | None]]:
        """The last hour of a function, or of the worker, by minute, the oldest first, as `History.of`."""

    def failure_groups(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        """The failures since the worker started, grouped, those that failed last first. Args: function: of this one only."""

    async def disable(self, name: str) -> None:
        """Refuse all requests of a function until it is enabled. Raises: NoSuchFunction, NoCapacity, StorageFull."""

    async def enable(self, name: str) -> None:
        """Give a function the concurrency that it had. Raises: NoSuchFunction, NoCapacity, StorageFull."""

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """Run a function once, and tell what it printed. An error of the function is in the result; others raise SockdError."""
