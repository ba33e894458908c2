"""Calls for the developer of a function: one that a debugger steps through, or whose reads are recorded for an initscript.

Owns nothing that outlives a call.
"""

from __future__ import annotations

import asyncio
import time

from sockd.base.errors import BadInitscript
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.serving.debugging import Debugging, ReportProgress
from sockd.functions.serving.function import Function
from sockd.functions.serving.leased import Outcome
from sockd.functions.serving.serving import serve_request
from sockd_initscripts.report import RunReport

REPORT_DEADLINE_S = 10.0
"""Time for the report of a recording after its answer."""


async def record(
    initscripts: Initscripts | None, function: Function, request: InvokeRequest
) -> tuple[Outcome, RunReport]:
    """Run a function once in a new sandbox and record its reads.

    Raises: as `serve_request`; BadInitscript if there is no engine."""
    if initscripts is None:
        raise BadInitscript("this worker has no initscripts")
    script = await initscripts.recorder(request.name, function.version.config)
    try:
        outcome = await serve_request(function, request, recorder=script)
        script_run = outcome.leased.script_run
        if script_run is None:
            raise BadInitscript("the initscript engine is busy; record again")
        await asyncio.wait([script_run.run.done], timeout=REPORT_DEADLINE_S)
        report = script_run.run.report()
        if report is None:
            raise BadInitscript("the initscript engine died or did not answer; record again")
        return outcome, report
    finally:
        initscripts.release(script)


async def debug(
    debugging: Debugging, function: Function, request: InvokeRequest, port: int, tell: ReportProgress
) -> Outcome:
    """Run a function once, after a debugger has connected. Args: port: 0: any that is free.

    Raises: as `serve_request`; CannotDebug, PackagesFailed."""
    async with debugging.session(function.version, port, tell) as debugged:
        request.arrived_ns = time.monotonic_ns()  # installing the debugger is no waiting for its turn
        return await serve_request(function, request, debugged=debugged)
