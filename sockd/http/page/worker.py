"""The interface of the worker for the page: `WorkerApi`, and members that only the page shows.

Owns nothing. Fulfilled by the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sockd.http.aws.worker import InvocationResult
from sockd.http.run.worker_api import WorkerApi
from sockd.observe.recent import RecentRates
from sockd.plain.config import RunRule
from sockd.plain.invoke_request import InvokeRequest


class PageWorker(WorkerApi, Protocol):
    """What the page may ask of the worker. Reading costs microseconds for each function, node or trace that is told."""

    @property
    def run_rules(self) -> Mapping[str, RunRule]:
        """Who may call a function at /run, of those that are not open to everybody."""

    def recent_rates(self, name: str) -> RecentRates:
        """What happened to a function in the last minute."""

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """Run a function once, and tell what it printed. An error of the function is in the result; others raise SockdError."""
