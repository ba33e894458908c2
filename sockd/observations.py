"""What is noted of invocations: their numbers, their logs, their traces.

Owns those books; the doors read them through the daemon. What is noted is noted before the answer goes out, so whoever has
an answer finds its log and its trace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine

from sockd.config import Config
from sockd.errors import SandboxFailed, SockdError
from sockd.http.metrics import Metrics
from sockd.http.request_ids import request_id_text
from sockd.invoke_request import InvokeRequest
from sockd.lambdas.function import Outcome
from sockd.lambdas.logs import LogBook
from sockd.lambdas.recent import Recent
from sockd.lambdas.traces import Traces
from sockd.telemetry import Invocation, LogRecord

_log = logging.getLogger(__name__)


class Observations:
    """`account` is on the way of every request."""

    def __init__(self, config: Config) -> None:
        self.metrics = Metrics()
        self.logs = LogBook()
        self.traces = Traces(config.traces.keep)
        self.recent = Recent()

    async def account(self, request: InvokeRequest, running: Coroutine[None, None, Outcome]) -> Invocation:
        """Wait for one invocation and note what there is to note of it. Raises: SockdError, also the function's own."""
        name = request.name
        try:
            outcome = await running
        except SockdError as error:
            self.metrics.observe_error(name, request.trigger, error)
            raise
        except OSError as error:
            _log.exception("%s could not be run", name)
            self.metrics.observe_error(name, request.trigger, error)
            raise SandboxFailed(f"a sandbox could not be made: {error.strerror}") from error
        reply, invocation = outcome.reply, outcome.invocation
        self.traces.add(request, outcome)
        took_ns = outcome.answered_ns - request.arrived_ns
        self.recent.observe(name, outcome.answered_ns, took_ns, invocation.cold, reply.error is not None)
        if reply.log or reply.log_dropped:
            self.logs.append(name, LogRecord(request_id_text(request.id), time.time(), reply.log, reply.log_dropped))
        if reply.error is not None:
            reply.error.invocation = invocation
            self.metrics.observe_error(name, request.trigger, reply.error)
            raise reply.error
        self.metrics.observe(name, request.trigger, invocation)
        return invocation

    def forget(self, name: str) -> None:
        """Drop what a removed function has left."""
        self.logs.forget(name)
        self.metrics.forget(name)
        self.recent.forget(name)
