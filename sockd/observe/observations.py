"""What is recorded of invocations: their numbers, their logs, their traces.

Owns those books; the APIs read them through the worker's parts. It begins no invocation, and receives what came of each. That is
recorded in the same step of the loop in which the answer goes out, so a client that has an answer finds its log and its trace.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sockd.base.config import MB, Config
from sockd.base.errors import FunctionFailed, SandboxFailed, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.base.telemetry import COLD, Ending, Invocation, LogRecord, SpanContext, TraceContext
from sockd.base.trace_context import for_function
from sockd.functions.serving.leased import Outcome
from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.observe.failure_groups import FailureGroups, failure_key
from sockd.observe.failure_log import appended, failure_log
from sockd.observe.history import History
from sockd.observe.history_keeper import HistoryKeeper, load
from sockd.observe.log_store import LogStore
from sockd.observe.logs import LogBook
from sockd.observe.metrics import Metrics
from sockd.observe.otlp.client import SpanExport
from sockd.observe.recent import Recent
from sockd.observe.traces import Traces, trace_of_refused

_log = logging.getLogger(__name__)
LEFT_AFTER_NS = 10_000_000
"""A request that is faster is not checked for a client that has left: that is a system call, and few clients give up so
soon."""


class Observations:
    """`placed` before a request begins; then `served`, `refused` or `ended`."""

    def __init__(
        self,
        config: Config,
        export: SpanExport | None = None,
        store: LogStore | None = None,
        live: LiveOutput | None = None,
        history: Path | None = None,
    ) -> None:
        """Args: export: where spans go; without, a caller's trace context is only passed on. store: where logs go besides
        memory. live: gives what running requests print. history: the file in which the last hour is kept."""
        self.metrics = Metrics()
        self.logs = LogBook(max_bytes=config.logs.memory_mb * MB, live=live)
        self.traces = Traces(config.traces)
        self.failure_groups = FailureGroups()
        self.history = load(history) if history is not None else History()
        self.recent = Recent(self.history.add)
        self._history_keeper = HistoryKeeper(self.recent, self.history, history) if history is not None else None
        self._export = export
        self._store = store
        if export is not None:
            text = "Invocations for the OpenTelemetry collector, by what became of their spans."
            self.metrics.counter("otlp_invocations", text, export.counts, label="outcome")
        if store is not None:
            self.metrics.counter("lost_logs", "Records that could not be written to [logs].", lambda: store.lost)

    @classmethod
    def open(cls, config: Config, directory: Path, live: LiveOutput, history: Path) -> Observations:
        """With what the configuration asks for, and begin to keep the history. Args: directory: for logs; history: a file.

        Raises: BadConfig, OSError."""
        export = SpanExport.of(config.otlp)
        store = LogStore(directory, config.logs.keep_mb * MB) if config.logs.keep_mb else None
        observations = cls(config, export, store, live, history)
        if observations._history_keeper is not None:
            observations._history_keeper.start()
        return observations

    async def aclose(self) -> None:
        """Have everything that is recorded where it belongs."""
        if self._history_keeper is not None:
            await self._history_keeper.aclose()
        if self._export is not None:
            await self._export.aclose()
        if self._store is not None:
            await self._store.aclose()

    async def served(
        self, request: InvokeRequest, span: SpanContext | None, outcome: Outcome, *, measured: bool = True
    ) -> Invocation:
        """Note an invocation that reached a sandbox. Raises: SockdError, the function's own, as the caller gets it.

        Args: span: of `placed`; measured: False: its log and trace only, as how long it takes says nothing."""
        reply = outcome.reply
        if reply.error is not None:
            tell_failure(request, outcome, reply.error)
        record = self._note(request, outcome, span, measured=measured, left=client_left(request, outcome))
        if record is not None and self._store is not None:
            await self._store.append(record)
        if reply.answered_error is not None:
            raise as_callers_get(request, reply.answered_error)
        return outcome.invocation

    def ended(
        self,
        request: InvokeRequest,
        span: SpanContext | None,
        done: Callable[[Ending], None],
        outcome: Outcome | BaseException,
    ) -> None:
        """Note an invocation that was begun without a task, and call `done` with its ending as the caller gets it.

        Args: span: of `placed`."""
        if isinstance(outcome, BaseException):
            done(self.refused(request, span, outcome))
            return
        reply = outcome.reply
        ending: Ending = outcome.invocation
        if reply.error is not None:
            tell_failure(request, outcome, reply.error)
            ending = as_callers_get(request, reply.answered_error or ending)
        left = client_left(request, outcome)
        if self._store is None or not (reply.log or reply.log_dropped):
            # The answer first. Who has it and asks for what is recorded here is heard by this thread, and later.
            done(ending)
            self._note(request, outcome, span, left=left)
            return
        try:
            record = self._note(request, outcome, span, left=left)
            assert record is not None
        except Exception as error:  # a bug of ours must not keep the answer
            done(error)
            return
        writing = asyncio.get_running_loop().create_task(self._store.append(record))
        writing.add_done_callback(lambda written: done(written.exception() or ending))

    def _note(
        self, request: InvokeRequest, outcome: Outcome, span: SpanContext | None, *, measured: bool = True, left: bool
    ) -> LogRecord | None:
        """Note one that reached a sandbox. Returns: its log, if it printed anything."""
        name, reply, invocation = request.name, outcome.reply, outcome.invocation
        trace = self.traces.add(request, outcome, span)
        if left and trace is not None:
            trace.client_left = True
        if self._export is not None and span is not None and span.span_id and trace is not None:
            self._export.add(trace)
        if trace is not None and trace.error_type:
            key = failure_key(name, trace.error_type, trace.stack)
            self.failure_groups.add(key, trace.answered_ns, trace.request_id, trace.message)
        took_ns = outcome.answered_ns - request.arrived_ns
        if measured:
            self.recent.observe(name, outcome.answered_ns, took_ns, invocation.origin in COLD, reply.error is not None)
        record = self._keep_log(request, outcome) if reply.log or reply.log_dropped else None
        if measured and reply.error is not None:
            self.metrics.observe_error(name, request.trigger, reply.error)
        elif measured:
            self.metrics.observe(name, request.trigger, invocation)
        return record

    async def find_logs(self, name: str, request_id: str, since_s: float, limit: int) -> list[LogRecord]:
        """As `Logs.find` of the APIs' worker."""
        if self._store is not None:
            return await self._store.find(name, request_id=request_id, since_s=since_s, limit=limit)
        return self.logs.tail(name, request_id=request_id, since_s=since_s, limit=limit)

    def note_failed_init(self, version: Version, reply: Reply) -> None:
        """Keep the log of an init that no request has asked for: of a sandbox that failed, or of a snapshot. It has an id of
        its own, as requests have."""
        if reply.error is None and not reply.log:
            return
        text_id, time_s = request_id_text(new_request_id()), time.time()
        as_json = bool(version.program.json_log_level)
        log = reply.log
        if reply.error is not None:
            log = appended(log, failure_log(reply.error, text_id, time_s, as_json=as_json))
        name = version.record.name
        record = LogRecord(text_id, time_s, log, reply.log_dropped, name, version.number)
        self.logs.append(name, record)
        if self._store is not None:
            self._store.write(record)

    def relayed(self, request: InvokeRequest, invocation: Invocation) -> None:
        """Note a request that the program of a service has answered."""
        now_ns = time.monotonic_ns()
        self.recent.observe(request.name, now_ns, now_ns - request.arrived_ns, False, False)
        self.metrics.observe(request.name, request.trigger, invocation)

    def note_service_log(self, record: LogRecord) -> None:
        """Keep what the program of a service has printed."""
        self.logs.append(record.function, record)
        if self._store is not None:
            self._store.write(record)

    def forget(self, name: str) -> None:
        """Drop what a removed function has left."""
        if self._store is not None:
            self._store.forget(name)
        self.logs.forget(name)
        self.metrics.forget(name)
        self.recent.forget(name)
        self.history.forget(name)
        self.failure_groups.forget(name)

    def _keep_log(self, request: InvokeRequest, outcome: Outcome) -> LogRecord:
        """Keep what it printed in memory."""
        reply, version = outcome.reply, outcome.invocation.version
        text_id = request_id_text(request.id)
        record = LogRecord(text_id, time.time(), reply.log, reply.log_dropped, request.name, version)
        self.logs.append(request.name, record)
        return record

    def placed(self, request: InvokeRequest) -> SpanContext | None:
        """A request's place in its trace, if it is to have one. Call it before the request begins."""
        return self._place(request) if request.trace is not None or self._export is not None else None

    def _place(self, request: InvokeRequest) -> SpanContext:
        """A request's place in its trace, which is the caller's or begins here; the function gets it."""
        # A trace that begins here has the request's id, so that one leads to the other.
        caller = request.trace or TraceContext(request.id, b"", None)
        export, sampled = self._export, caller.sampled
        if export is not None and sampled is None:
            sampled = export.samples(caller.trace_id)
        span_id = os.urandom(8) if export is not None and sampled else b""
        # Where no span of ours is recorded, the function's own are the caller's children.
        request.trace = TraceContext(caller.trace_id, span_id or caller.parent_id, sampled, caller.state)
        details = for_function(request.trace)
        request.amzn_trace = details["trace"]
        request.details = details if request.details is None else {**request.details, **details}
        return SpanContext(caller.trace_id, span_id, caller.parent_id, caller.state)

    def refused(self, request: InvokeRequest, span: SpanContext | None, error: BaseException) -> BaseException:
        """Note an invocation that has no outcome. Returns: its error, as the caller gets it."""
        if not isinstance(error, SockdError | OSError):
            return error  # it was cancelled, or there is a bug of ours
        self.metrics.observe_error(request.name, request.trigger, error)
        if span is not None and span.span_id and self._export is not None:
            error_type = error.error_type if isinstance(error, SockdError) else type(error).__name__
            self._export.add(trace_of_refused(request, error_type, span))
        if isinstance(error, SockdError):
            return as_callers_get(request, error)
        _log.error("%s could not be run", request.name, exc_info=error)
        failed = SandboxFailed(f"a sandbox could not be made: {error.strerror}")
        failed.__cause__ = error
        return failed


T = TypeVar("T")


def as_callers_get(request: InvokeRequest, ending: T) -> T | FunctionFailed:
    """Return the ending as a caller gets it: instead of a function's own error, an error with the request's id alone if the
    request hides errors."""
    if not request.hides_errors or not isinstance(ending, FunctionFailed):
        return ending
    text_id = request_id_text(request.id)
    hidden = FunctionFailed(
        "FunctionError", f"the function raised an error, which is in its log under request {text_id}"
    )
    hidden.status, hidden.invocation = ending.status, ending.invocation
    return hidden


def client_left(request: InvokeRequest, outcome: Outcome) -> bool:
    """Whether no client waits for the answer any more; asked before it is sent, because a client that has it may go."""
    if outcome.reply.stream is not None:
        return outcome.reply.stream.was_left
    gone = request.gone
    return gone is not None and outcome.answered_ns - request.arrived_ns >= LEFT_AFTER_NS and gone()


def tell_failure(request: InvokeRequest, outcome: Outcome, error: SockdError) -> None:
    """Add the error of a request to what it printed, and to the error what the APIs tell of the invocation."""
    error.invocation = outcome.invocation
    text_id, as_json = request_id_text(request.id), bool(outcome.json_log_level)
    reply = outcome.reply
    reply.log = appended(reply.log, failure_log(error, text_id, time.time(), as_json=as_json))
