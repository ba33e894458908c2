"""What collectors get of invocations: spans, trace context, metrics. Against a real collector's wire."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon.collector import Collector, Seen
from tests.daemon.gate import WAITS, Gate
from tests.daemon.running import RunningDaemon
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER = 2


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def config(collector: Collector) -> str:
    return f'[otlp]\nendpoint = "{collector.url}"\n'


def of_request(collector: Collector, request_id: str) -> list[Seen]:
    """All spans of one invocation, the server's first; they come together."""

    def find(spans: list[Seen]) -> list[Seen]:
        servers = [span for span in spans if span.attributes.get("faas.invocation_id") == request_id]
        return [*servers, *(span for span in spans if servers and span.parent_id == servers[0].span_id)]

    found: list[Seen] = collector.wait(find)
    return found


def metrics(daemon: RunningDaemon) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(daemon.request("GET", "/metrics").body.decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_an_invocation_is_a_span_of_the_caller_s_trace_with_its_phases_below(
    daemon: RunningDaemon, collector: Collector
) -> None:
    daemon.deploy(
        "traced",
        "import os, time\nNAMES = '_X_AMZN_TRACE_ID', 'TRACEPARENT', 'TRACESTATE'\n"
        "def f(event):\n time.sleep(0.05)\n return [os.environ.get(name) for name in NAMES]",
    )
    before_ns = time.time_ns()
    answer = daemon.run("traced", traceparent=f"00-{TRACE}-{SPAN}-01", tracestate="vendor=x")
    after_ns = time.time_ns()
    server, *children = of_request(collector, answer.headers["x-amzn-requestid"])
    assert (server.name, server.kind, server.trace_id, server.parent_id) == ("traced", SERVER, TRACE, SPAN)
    assert server.state == "vendor=x" and server.service == "sockd" and not server.failed
    assert server.attributes["faas.name"] == "traced" and server.attributes["faas.trigger"] == "http"
    assert server.attributes["faas.coldstart"] is True and server.attributes["faas.version"] == "$LATEST"
    assert before_ns < server.start_ns < server.end_ns < after_ns
    spans = {span.name: span for span in children}
    assert {"setup", "init", "exec"} <= set(spans)
    assert spans["exec"].end_ns - spans["exec"].start_ns >= 50_000_000
    for span in children:
        assert span.trace_id == TRACE and server.start_ns <= span.start_ns <= span.end_ns <= server.end_ns
    amzn = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={server.span_id};Sampled=1"
    assert answer.headers["x-amzn-trace-id"] == amzn
    assert answer.json == [amzn, f"00-{TRACE}-{server.span_id}-01", "vendor=x"]


def test_a_streamed_answer_says_its_trace_too(daemon: RunningDaemon) -> None:
    daemon.deploy("streams", "def f(event):\n yield b'a'\n yield b'b'")
    answer = daemon.run("streams", traceparent=f"00-{TRACE}-{SPAN}-01")
    assert answer.body == b"ab" and TRACE[8:] in answer.headers["x-amzn-trace-id"]


def test_a_trace_that_begins_here_has_the_request_s_id(daemon: RunningDaemon, collector: Collector) -> None:
    daemon.deploy("fresh", "def f(event): raise ValueError(event)")
    answer = daemon.run("fresh")
    request_id = answer.headers["x-amzn-requestid"]
    server, *_ = of_request(collector, request_id)
    assert server.trace_id == request_id.replace("-", "") and server.parent_id == ""
    assert server.failed and server.attributes["error.type"] == "ValueError"
    listed = json.loads(daemon.manage("GET", "/traces?limit=1").body)
    assert listed[0]["trace_id"] == server.trace_id


def test_what_the_caller_does_not_record_is_not_exported_and_hostile_context_is_none(
    daemon: RunningDaemon, collector: Collector
) -> None:
    daemon.deploy("quiet", "def f(event): return 1")
    unsampled = daemon.run("quiet", traceparent=f"00-{TRACE}-{SPAN}-00")
    hostile = daemon.run("quiet", traceparent=f"00-{TRACE}-{SPAN}-01-" + "x" * 1000)
    assert f"Parent={SPAN};Sampled=0" in unsampled.headers["x-amzn-trace-id"]
    assert TRACE[8:] not in hostile.headers["x-amzn-trace-id"]
    of_request(collector, hostile.headers["x-amzn-requestid"])
    ids = {span.attributes.get("faas.invocation_id") for span in collector.spans}
    assert unsampled.headers["x-amzn-requestid"] not in ids


def test_what_happens_now_is_reported_by_function(daemon: RunningDaemon) -> None:
    daemon.deploy("lively", "import time\ndef f(event):\n time.sleep(0.02)\n return 1 / event", concurrency=7)
    for event in (1, 1, 1, 0):
        daemon.run("lively", event)
    live = daemon.manage("GET", "/live").json
    (row,) = [row for row in live["functions"] if row["name"] == "lively"]
    assert (row["count"], row["failed"], row["cold_share"], row["concurrency"]) == (4, 1, 0.25, 7)
    assert row["p50_ms"] >= 19 and row["p99_ms"] >= row["p50_ms"] and row["rate"] > 0
    assert row["idle"] == 1 and row["memory_bytes"] > 0 and live["worker"]["sandboxes"]["busy"] == 0
    slowest = daemon.manage("GET", "/traces?order=slowest&limit=2&function=lively").json
    took = [trace["answered_ns"] - trace["arrived_ns"] for trace in slowest]
    assert len(took) == 2 and took == sorted(took, reverse=True)
    assert [trace["function"] for trace in daemon.manage("GET", "/traces?kind=cold&function=lively").json] == ["lively"]
    assert daemon.manage("GET", "/traces?order=x").status == 400
    daemon.remove("lively")
    assert "lively" not in daemon.manage("GET", "/live").body.decode()


def test_refused_invocations_are_spans_too(daemon: RunningDaemon, collector: Collector, gate: Gate) -> None:
    daemon.deploy("full", WAITS, concurrency=1, queue_depth=0, timeout_s=20)
    with in_background(lambda: daemon.run("full", gate.port)) as first:
        gate.arrived()
        assert [answer.status for answer in at_once(3, lambda n: daemon.run("full", gate.port))] == [429] * 3
        gate.open()
        assert first().status == 200
    refused = collector.wait(lambda spans: [span for span in spans if span.name == "full" and span.failed])
    assert refused[0].attributes["error.type"] == "TooManyRequestsException"


def test_the_last_spans_come_at_the_drain_and_those_that_no_one_takes_are_counted(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = tmp_path_factory.mktemp("drained") / "state"
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "mine"}
    daemon = RunningDaemon.start(state, env={**environment, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret"})
    try:
        daemon.deploy("last", "def f(event): return event")
        collector.status = 400
        daemon.call("last")
        daemon.wait_line("Failed to export")
        collector.status = 200
        assert metrics(daemon)["sockd_otlp_invocations_total", "exported"] == 0
        answer = daemon.run("last")
        assert daemon.terminate() == 0, daemon.lines
        servers = [span for span in collector.spans if span.service == "mine" and span.kind == SERVER]
        assert [span.attributes["faas.invocation_id"] for span in servers] == [answer.headers["x-amzn-requestid"]]
        assert any(headers.get("x-key") == "secret" for headers in collector.headers)
        assert not any("secret" in line for line in daemon.lines)
    finally:
        collector.status = 200
        daemon.close()
