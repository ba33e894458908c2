"""The requests of functions: each is begun here, and what came of it goes to the observations.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from sockd.base.errors import Draining, NotInvoked, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import request_id_text
from sockd.base.telemetry import Ending, Invocation
from sockd.functions.deploys.canaries import Canaries
from sockd.functions.functions import Functions
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.services.services import Services
from sockd.functions.serving import development_calls
from sockd.functions.serving.debugging import ReportProgress
from sockd.functions.serving.function import Function
from sockd.functions.serving.leased import Outcome
from sockd.functions.serving.serving import begin_serving, serve_request
from sockd.http.worker_values import InvocationResult
from sockd.isolation.sandbox.lifecycle import State
from sockd.observe.observations import Observations
from sockd_initscripts.report import AppRead


class Calls:
    """As `sockd.http.worker.Calls`."""

    def __init__(
        self,
        functions: Functions,
        services: Services,
        canaries: Canaries,
        initscripts: Initscripts | None,
        observations: Observations,
    ) -> None:
        self._live = functions.live
        self._by_name = functions.live.by_name
        self._debugging = functions.debugging
        self._services = services
        self._canaries = canaries
        self._initscripts = initscripts
        self._observations = observations
        self.draining = False
        self.leaving = False
        self.is_app = functions.live.is_app
        self.call_key = functions.live.call_key
        self.incarnation = functions.live.incarnation

    def begin(self, request: InvokeRequest, done: Callable[[Ending], None]) -> Callable[[], object] | None:
        """Begin one invocation on a function that is live; nothing stands between the request and its function."""
        function = None if request.qualifier or self.draining else self._by_name.get(request.name)
        if function is None or function.version.config.service is not None:
            return None
        observations = self._observations
        ended = partial(observations.ended, request, observations.placed(request), done)
        return begin_serving(function, request, ended).cancel

    async def invoke(self, request: InvokeRequest) -> Invocation:
        """Run a function once. Raises: SockdError, with `invocation` where a sandbox was reached."""
        self._check_open()
        function = await self._live.called(request)
        if function.version.config.service is not None:
            return await self._relay(function, request)
        running = self._observed(request, serve_request(function, request))
        return await self._canaries.watched(request, function.version.number, running)

    async def record(self, request: InvokeRequest) -> Mapping[str, Any]:
        """Run a function once in a new sandbox and return what it read. Raises: as `invoke`; BadInitscript."""
        self._check_open()
        reads: list[AppRead] = []

        async def run() -> Outcome:
            function = await self._invoked(request)
            outcome, report = await development_calls.record(self._initscripts, function, request)
            reads.extend(report.reads)
            return outcome

        invocation = await self._observed(request, run())
        return {
            "request_id": request_id_text(request.id),
            "event": msgspec.Raw(request.payload),
            "answer": msgspec.Raw(invocation.body),
            "reads": reads,
        }

    async def debug(self, request: InvokeRequest, port: int, tell: ReportProgress) -> Invocation:
        """Run a function once, when a debugger has come to the port. How long that takes says nothing of the function."""
        self._check_open()

        async def run() -> Outcome:
            function = await self._invoked(request)
            return await development_calls.debug(self._debugging, function, request, port, tell)

        return await self._observed(request, run(), measured=False)

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        """Run a function once, with what it printed; an error of the function is in the result."""
        self._check_open()
        function = await self._invoked(request)
        ended: list[tuple[Outcome, int]] = []

        async def run() -> Outcome:
            outcome = await serve_request(function, request)
            sandbox = outcome.leased.sandbox
            # Now, as the loop's next step may give the cgroup to another.
            is_there = sandbox.lifecycle.state is State.IDLE
            ended.append((outcome, sandbox.process.peak_bytes() if is_there else outcome.reply.peak_bytes))
            return outcome

        error: SockdError | None = None
        try:
            running = self._observed(request, run())
            await self._canaries.watched(request, function.version.number, running)
        except SockdError as failed:
            if not ended:
                raise
            error = failed
        outcome, peak_bytes = ended[0]
        reply, sandbox = outcome.reply, outcome.leased.sandbox
        memory_mb, level = sandbox.process.limits.memory_bytes >> 20, outcome.json_log_level
        return InvocationResult(outcome.invocation, error, reply.log, memory_mb, peak_bytes, level, reply.error)

    async def _invoked(self, request: InvokeRequest) -> Function:
        """The version for a request that only a function can serve. Raises: NotInvoked; as `LiveFunctions.called`."""
        function = await self._live.called(request)
        if function.version.config.service is not None:
            raise NotInvoked(request.name)
        return function

    async def _relay(self, function: Function, request: InvokeRequest) -> Invocation:
        """Pass a request to the program of a service. Raises: SockdError."""
        try:
            invocation = await self._services.serve(function, request)
        except (SockdError, OSError) as error:
            answered = self._observations.refused(request, None, error)
            if answered is error:
                raise
            raise answered from answered.__cause__
        self._observations.relayed(request, invocation)
        return invocation

    async def _observed(
        self, request: InvokeRequest, running: Coroutine[None, None, Outcome], *, measured: bool = True
    ) -> Invocation:
        """Wait for one invocation, and have it observed. Raises: SockdError, also the function's own."""
        span = self._observations.placed(request)
        try:
            outcome = await running
        except (SockdError, OSError) as error:
            answered = self._observations.refused(request, span, error)
            if answered is error:
                raise
            raise answered from answered.__cause__
        return await self._observations.served(request, span, outcome, measured=measured)

    def _check_open(self) -> None:
        if self.draining:
            raise Draining("the worker is shutting down")
