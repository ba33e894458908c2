"""An OpenTelemetry collector's stand-in: takes OTLP over HTTP on loopback, and keeps the spans that it was sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    state: str
    failed: bool
    service: str


class Collector:
    """Serves from the start; `close` ends it."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self._more = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.status == 200:
                    assert self.path == "/v1/traces"
                    collector.take(ExportTraceServiceRequest.FromString(body), dict(self.headers.items()))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: Any, headers: dict[str, str]) -> None:
        with self._more:
            self.headers.append(headers)
            for resource in request.resource_spans:
                service = {entry.key: entry.value.string_value for entry in resource.resource.attributes}[
                    "service.name"
                ]
                for scope in resource.scope_spans:
                    self.spans += [_seen(span, service) for span in scope.spans]
            self._more.notify_all()

    def wait(self, condition: Callable[[list[Seen]], Any], deadline_s: float = 15.0) -> Any:
        """The first true value that `condition` gives of all spans so far. Raises: AssertionError."""
        ends = time.monotonic() + deadline_s
        with self._more:
            while not (value := condition(self.spans)):
                assert self._more.wait(ends - time.monotonic()), self.spans
            return value

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _seen(span: Any, service: str) -> Seen:
    attributes = {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    return Seen(span.name, *ids, span.kind, *times, attributes, span.trace_state, span.status.code == 2, service)
