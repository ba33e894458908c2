"""One invocation over HTTP, timed as SeBS's HTTP trigger times one, and what became of it."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from benchmarks.sebs_runner.errors import InvocationFailed

TIMEOUT_S = 1000.0
"""Beyond what a worker lets a function run."""


@dataclass(slots=True)
class Sample:
    """One invocation that was answered by the wrapper."""

    output: dict[str, Any]
    """The wrapper's whole answer."""
    headers: dict[str, str]
    begin: datetime
    end: datetime
    sent_ns: int
    """CLOCK_MONOTONIC, before the request's first byte; the worker's and the wrapper's clock, too."""
    client_us: int
    connect_s: float
    first_byte_s: float
    """From the connection's start, as curl's STARTTRANSFER_TIME."""
    variant: dict[str, Any] = field(default_factory=dict)
    """What it was a sample of, for the last columns of the results."""
    trace: dict[str, Any] | None = None
    """What the worker remembers of a cold start."""
    read_bytes: int = 0
    """The bytes of all objects that the function read."""

    @property
    def cold(self) -> bool:
        return bool(self.output["is_cold"])

    @property
    def request_id(self) -> str:
        return str(self.output["request_id"])

    @property
    def result(self) -> Any:
        """What the function returned under `result`."""
        return self.output["result"]["output"]

    @property
    def benchmark_us(self) -> int:
        """SeBS's exec_time: begin to end, the imports of a cold start included."""
        return round((float(self.output["end"]) - float(self.output["begin"])) * 1e6)

    @property
    def times(self) -> dict[str, Any]:
        """The wrapper's own key: nanoseconds on CLOCK_MONOTONIC."""
        times: dict[str, Any] = self.output["sockd"]
        return times

    @property
    def start_us(self) -> float:
        """Start latency: from the request's arrival at the worker, when the sandbox is begun, to the first line that works
        on data. Without a trace, from the request's first byte."""
        begun_ns = self.trace["arrived_ns"] if self.trace else self.sent_ns
        return float(self.times["init_done_ns"] - begun_ns) / 1000

    @property
    def read_us(self) -> float:
        """How long the function waited for its reads."""
        return float(sum(read["end_ns"] - read["start_ns"] for read in self.times["reads"])) / 1000

    @property
    def hidden_us(self) -> float:
        """How long something was being fetched while the function did not wait for it."""
        return float(self.trace["hidden_ns"]) / 1000 if self.trace else 0.0

    @property
    def prefetched_reads(self) -> int:
        """Reads, of objects and lists, that were served from the shared region."""
        spans = self.trace["spans"] if self.trace else ()
        return sum(span["track"] == "reads" and span["detail"] == "region" for span in spans)

    @property
    def phases_ms(self) -> dict[str, float]:
        """`Server-Timing`."""
        entries = (entry.split(";dur=") for entry in self.headers.get("server-timing", "").split(", ") if entry)
        return {name: float(duration) for name, duration in entries}


def invoke(url: str, function: str, event: dict[str, Any]) -> Sample:
    """POST /run/<function> on a connection of its own. Raises: InvocationFailed."""
    parts = urlsplit(url)
    payload = json.dumps(event).encode()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        begin, started_ns = datetime.now(), time.monotonic_ns()
        connection.connect()
        sent_ns = time.monotonic_ns()
        connection.request("POST", f"/run/{quote(function)}", payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        first_byte_ns = time.monotonic_ns()
        body = response.read()
        ended_ns, end = time.monotonic_ns(), datetime.now()
    except (OSError, http.client.HTTPException) as error:
        raise InvocationFailed(f"no answer from {url}: {error}", fix="sockd status") from None
    finally:
        connection.close()
    if response.status != 200:
        raise InvocationFailed(f"{function}: status {response.status}: {_words(body)}", fix=f"sockd logs {function}")
    return Sample(
        output=_output(function, body),
        headers={name.lower(): value for name, value in response.getheaders()},
        begin=begin,
        end=end,
        sent_ns=sent_ns,
        client_us=(ended_ns - started_ns) // 1000,
        connect_s=(sent_ns - started_ns) / 1e9,
        first_byte_s=(first_byte_ns - started_ns) / 1e9,
    )


def _output(function: str, body: bytes) -> dict[str, Any]:
    try:
        output = json.loads(body)
        if "is_cold" in output and "request_id" in output:
            return dict(output)
    except (ValueError, TypeError):
        pass
    raise InvocationFailed(f"{function}: the answer is not that of SeBS's wrapper: {body[:200]!r}")


def _words(body: bytes) -> str:
    try:
        error = json.loads(body)
        return f"{error['errorType']}: {error['errorMessage']}"
    except (ValueError, TypeError, KeyError):
        return body[:300].decode(errors="replace")
