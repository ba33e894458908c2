"""Routes of the management API for output of functions.

    GET /functions/{name}/logs?limit=&request_id=&since=&follow=1&raw=1&recent=1

Without `follow` a list, with it lines of JSON, as they come: for whole lines that a request prints while it runs (`ended` is
false; also for those that it printed before the subscription), and at its end for the rest. `since` is Unix time; `raw` adds the
bytes as they were, in base64, as `text` is UTF-8 whatever was printed; with `recent` only memory is searched, which has what a
request has just printed, and not the disk.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.errors import BadRequest, Draining
from sockd.base.telemetry import LogRecord
from sockd.http.management.typed_routes import function_name, limit, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.streams import Lines
from sockd.http.worker import Worker

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The records that a request for logs asks for."""

    name: str
    request_id: str
    since_s: float
    limit: int
    is_raw: bool
    is_recent: bool

    @classmethod
    def of(cls, request: Request) -> LogQuery:
        """Raises: BadRequest."""
        query = request.query_params
        return cls(
            function_name(request),
            query.get("request_id", "").lower(),
            _time(query.get("since", "0")),
            limit(query.get("limit", "100")),
            query.get("raw", "0") == "1",
            query.get("recent", "0") == "1",
        )

    def fields(self, record: LogRecord) -> dict[str, object]:
        """One record, JSON-able."""
        shown: dict[str, object] = {
            "request_id": record.request_id,
            "time_s": record.time_s,
            "function": record.function,
            "version": record.version,
            "text": record.text.decode("utf-8", "backslashreplace"),
            "dropped_bytes": record.dropped_bytes,
            "ended": record.ended,
        }
        return {**shown, "raw": base64.b64encode(record.text).decode()} if self.is_raw else shown


def routes(worker: Worker) -> list[Route]:
    """The routes, for `Management`."""

    async def logs(request: Request) -> ASGIApp:
        wanted = LogQuery.of(request)
        worker.functions.info(wanted.name)  # an unknown one is a 404, not a stream that fails
        if request.query_params.get("follow", "0") == "1":
            if worker.calls.draining:
                raise Draining("the worker is shutting down")
            return Lines(_follow(worker, wanted), endless=True)
        return respond(json_answer([wanted.fields(record) for record in await _found(worker, wanted)]))

    return typed_routes([("GET", "/functions/{name}/logs", logs)])


async def _found(worker: Worker, wanted: LogQuery) -> list[LogRecord]:
    if wanted.is_recent:
        return worker.logs.tail(wanted.name, request_id=wanted.request_id, limit=wanted.limit)
    return await worker.logs.find(wanted.name, request_id=wanted.request_id, since_s=wanted.since_s, limit=wanted.limit)


async def _follow(worker: Worker, wanted: LogQuery) -> AsyncGenerator[bytes]:
    """Existing records, then new ones, without gaps or duplicates."""
    coming = aiter(worker.logs.follow(wanted.name))
    step = asyncio.ensure_future(anext(coming))
    try:
        await asyncio.sleep(0)  # the iterator's first step subscribes; nothing else runs between it and the next line
        kept = await _found(worker, wanted)
        for record in kept:
            yield _encode(wanted.fields(record)) + b"\n"
        known = {(record.request_id, record.time_s) for record in kept}  # what came while we looked is in both
        ended_s = {record.request_id: record.time_s for record in kept}
        while True:
            record = await step
            step = asyncio.ensure_future(anext(coming))
            is_new = (record.request_id, record.time_s) not in known
            if not record.ended:
                is_new = record.time_s > ended_s.get(record.request_id, 0.0)
            if is_new and record.request_id.startswith(wanted.request_id):
                yield _encode(wanted.fields(record)) + b"\n"
    except StopAsyncIteration:
        return
    finally:
        step.cancel()


def _time(text: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise BadRequest("since must be a Unix time in seconds")
    return time_s
