"""What is remembered of invocations, and what is made of it when somebody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sockd.base.config import TraceConfig
from sockd.base.errors import FunctionFailed
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation, Times
from sockd.isolation.sandbox.sandbox_init import SandboxInit
from sockd.observe import traces as traces_module
from sockd.observe.trace_spans import critical_path, describe, intersection, length, phases_of, summary, union
from sockd.observe.traces import NoSuchTrace, Trace, Traces, trace_of
from sockd_initscripts.client.daemon_run import Ending
from sockd_initscripts.report import AppRead, MessageRecord, RpcRecord, RunReport

MS = 1_000_000


def report(**changes: Any) -> RunReport:
    """A run that fetched for 100 ms from 1 ms on."""
    rpc = RpcRecord(
        id=0, descriptor=["s3.GetObject", "b", "k"], status=200, queued_ns=MS, sent_ns=2 * MS, done_ns=101 * MS, bytes=9
    )
    values = {"arrived_ns": 0, "started_ns": MS, "ended_ns": 101 * MS, "rpcs": [rpc], "region_bytes": 4096, **changes}
    return RunReport(run=1, outcome="exit", messages=[MessageRecord(0, 101 * MS, 9)], **values)


def outcome(*, cold: bool = True, run: Any = None, error: Any = None, network: str = "") -> Any:
    """The outcome of a request at 0 that waited 1 ms, set up until 5 ms, imported until 90 ms, ran until 119 and answered at
    120."""
    times = Times(MS, 4 * MS, 85 * MS, 29 * MS) if cold else Times(MS, 0, 0, 118 * MS)
    leased = SimpleNamespace(
        deploy=7,
        started_ns=MS if cold else 0,
        reserved_ns=2 * MS if cold else 0,
        forked_ns=4 * MS if cold else 0,
        ready_ns=5 * MS if cold else 0,
        node=None,  # as of an image's program
        is_new=cold,
        passed_over="",
        waited_for="",
        sandbox=SimpleNamespace(
            init=SandboxInit(started_ns=5 * MS, imports=[("a-1-x", "a", 0.02), ("a-1-x", "a.b", 0.01)]),
            process=SimpleNamespace(network_ns=(2 * MS, 3 * MS), network_words=network),
        ),
        script_run=SimpleNamespace(run=run) if run is not None else None,
    )
    reply = SimpleNamespace(error=error, exec_started_ns=90 * MS if cold else MS)
    invocation = Invocation(b"secret", "zygote" if cold else "warm", "sandbox-1", "2", "", times)
    return SimpleNamespace(invocation=invocation, reply=reply, leased=leased, answered_ns=120 * MS)


def run_of(reported: RunReport | None, ending: Ending | None = None) -> Any:
    return SimpleNamespace(report=lambda: reported, ending=ending or (Ending("exit") if reported else None))


def trace(**more: Any) -> Trace:
    return trace_of(InvokeRequest("f", b"", bytes(range(16)), 0), outcome(**more))


def names(shown: dict[str, Any], track: str) -> list[str]:
    return [span["name"] for span in shown["spans"] if span["track"] == track]


def test_a_network_of_its_own_has_a_span_that_says_where_it_came_from() -> None:
    assert "network" not in names(describe(trace()), "daemon")
    spans = describe(trace(network="made on the path"))["spans"]
    assert [span for span in spans if span["name"] == "network"] == [
        {"track": "daemon", "name": "network", "start_ns": 2 * MS, "end_ns": 3 * MS, "detail": "made on the path"}
    ]


def test_nothing_of_the_answer_is_kept() -> None:
    assert b"secret" not in b"".join(value for value in trace().__reduce__()[1] if isinstance(value, bytes))


def test_the_newest_are_kept_and_found_by_the_beginning_of_their_ids() -> None:
    traces = Traces(TraceConfig(keep=2, keep_each=0))
    for number in range(3):
        traces.add(InvokeRequest(f"f{number}", b"", bytes([number]) * 16, 0), outcome())
    assert [trace.function for trace in traces.last(9)] == ["f2", "f1"]
    assert traces.get("0202").function == "f2" == traces.get("0202", ["f1", "f2"]).function
    with pytest.raises(NoSuchTrace):
        traces.get("0202", ["f1"])
    assert traces.get("01010101-0101-0101-0101-010101010101").function == "f1"
    for unknown in ("0000", "0", "", "zz"):
        with pytest.raises(NoSuchTrace):
            traces.get(unknown)


def test_many_successes_do_not_push_out_a_failure_a_cold_start_or_a_slow_request() -> None:
    traces = Traces(TraceConfig(keep=10, keep_each=2, slow_ms=1000))
    error = FunctionFailed("KeyError", "'missing'", [f"frame {number}\n" for number in range(3000)])
    slow = outcome(cold=False)
    slow.answered_ns = 1000 * MS
    for number, ending in enumerate((outcome(), slow, outcome(cold=False, error=error))):
        traces.add(InvokeRequest("f", b"", bytes([0xF0 + number]) * 16, 0), ending)
    for number in range(1000):
        ending = outcome(cold=False)
        ending.answered_ns += number * 1000 * MS
        traces.add(InvokeRequest("g", b"", number.to_bytes(15) + b"g", number * 1000 * MS), ending)
    assert [[each.request_id[0] for each in traces.last(9, kind=kind)] for kind in ("cold", "slow", "failed")] == [
        [0xF0],
        [0xF1],
        [0xF2],
    ]
    assert len(traces.last(9999)) == 13 and len(traces.last(9999, "f")) == 3
    failed = traces.get("f2f2")
    reported = describe(failed)
    assert (failed.error_type, reported["error"]) == ("KeyError", "'missing'")
    assert reported["stack"][-1] == "frame 2999\n" and sum(map(len, reported["stack"])) <= traces_module.STACK_CHARS
    assert traces.why(traces.get("f0f0")) == "The requests before it are no longer remembered."


def test_failures_of_one_function_do_not_push_out_those_of_another() -> None:
    traces = Traces(TraceConfig(keep=10, keep_each=6))
    for name, count in (("quiet", 2), ("loud", 1000), ("other", 1), ("loud", 1000)):
        for number in range(count):
            failed = outcome(cold=False, error=FunctionFailed("KeyError", str(number), []))
            traces.add(InvokeRequest(name, b"", f"{name}{number}".encode().ljust(16, b"-"), 0), failed)
    kept = [(each.function, each.message) for each in traces.last(99, kind="failed")]
    assert kept == [("loud", "999"), ("loud", "998"), ("loud", "997"), ("other", "0"), ("quiet", "1"), ("quiet", "0")]


def test_none_is_kept_where_none_is_wanted() -> None:
    traces = Traces(TraceConfig(keep=0))
    traces.add(InvokeRequest("f", b"", bytes(16), 0), outcome(run=run_of(None)))
    assert traces.last(9) == []


def test_reports_are_bounded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_module, "MAX_REPORTS", 2)
    traces = Traces(TraceConfig(keep=10))
    for number in range(3):
        traces.add(InvokeRequest("f", b"", bytes([number]) * 16, 0), outcome(run=run_of(report())))
    assert [trace.run is None for trace in traces.last(9)] == [False, False, True]


def test_a_cold_start_is_cut_into_phases_without_a_gap() -> None:
    phases = phases_of(trace())
    assert [(span.name, span.start_ns // MS, span.end_ns // MS) for span in phases] == [
        ("queue", 0, 1),
        ("setup", 1, 5),
        ("init", 5, 90),
        ("exec", 90, 119),
        ("answer", 119, 120),
    ]
    shown = describe(trace())
    assert names(shown, "daemon") == ["queue", "memory", "fork", "prepare"]
    assert names(shown, "sandbox") == ["setup", "init", "exec"]
    assert (shown["initscript"], shown["hidden_ns"], shown["fetched_ns"]) == (None, 0, 0)


def test_a_warm_one_has_hardly_any() -> None:
    shown = describe(trace(cold=False))
    assert (names(shown, "daemon"), names(shown, "sandbox")) == (["queue"], ["exec"])
    assert [step["name"] for step in shown["critical"]] == ["queue", "exec", "answer"]


def test_a_failed_one_says_so() -> None:
    failed = trace(error=FunctionFailed("ValueError", "no"))
    assert summary(failed)["outcome"] == "ValueError"


def test_what_was_fetched_while_no_one_waited_is_hidden() -> None:
    waited = AppRead(["s3.GetObject", "b", "k"], "region", 91 * MS, 101 * MS)
    shown = describe(trace(run=run_of(report(reads=[waited]))))
    assert (shown["fetched_ns"], shown["hidden_ns"]) == (100 * MS, 90 * MS)
    assert names(shown, "initscript") == ["start", "boot", "message 0"]
    assert names(shown, "rpc") == names(shown, "reads") == ["s3.GetObject b k"]
    assert [rpc["sent_ns"] // MS for rpc in shown["rpcs"]] == [2]
    steps = [(step["name"], step["ns"] // MS) for step in shown["critical"]]
    assert ("read s3.GetObject b k (region)", 10) in steps
    assert sum(ns for _, ns in steps) == 120


def test_a_run_that_goes_on_and_one_whose_engine_died_have_no_spans() -> None:
    running = describe(trace(run=SimpleNamespace(report=lambda: None, ending=None)))
    assert (running["initscript"], names(running, "rpc")) == ("running", [])
    died = describe(trace(run=run_of(None, Ending("engine_died"))))
    assert (died["initscript"], names(died, "rpc")) == ("engine_died", [])


def test_what_a_sandbox_claims_stays_between_request_and_answer() -> None:
    """A sandbox may claim any times; the drawing must stay within the request."""
    lying = outcome()
    lying.leased.sandbox.init.started_ns = -(10**18)
    lying.reply.exec_started_ns = 10**18
    shown = describe(trace_of(InvokeRequest("f", b"", bytes(16), 0), lying))
    for span in shown["spans"]:
        assert 0 <= span["start_ns"] <= span["end_ns"] <= 120 * MS, span
    wild = AppRead(["x"], "network", 10**18, -5)
    shown = describe(trace(run=run_of(report(reads=[wild]))))
    assert all(step["ns"] >= 0 for step in shown["critical"])
    assert 0 <= shown["hidden_ns"] <= 120 * MS


def test_reads_say_where_they_came_from_and_why() -> None:
    reads = [
        AppRead(["s3.GetObject", "b", "k"], "region", 91 * MS, 92 * MS),
        AppRead(["s3.GetObject", "b", "other"], "network", 93 * MS, 94 * MS, "the script has not asked for it"),
    ]
    shown = describe(trace(run=run_of(report(reads=reads))))
    details = [span["detail"] for span in shown["spans"] if span["track"] == "reads"]
    assert details == ["region", "network: the script has not asked for it"]
    assert shown["replies"] == {"sent": 1, "reads": 2, "used": 1}


def test_an_rpc_without_an_end_ends_with_its_run() -> None:
    rpc = RpcRecord(id=1, descriptor=["tcp.line", "h:1"], status=-110, queued_ns=50 * MS, reason="timeout")
    shown = describe(trace(run=run_of(report(rpcs=[rpc]))))
    (span,) = [span for span in shown["spans"] if span["track"] == "rpc"]
    assert (span["end_ns"], span["detail"]) == (101 * MS, "failed: timeout, 0 bytes")


def test_reads_that_overlap_are_not_counted_twice() -> None:
    phases = phases_of(trace())
    reads = [
        traces_span("a", 91, 100),
        traces_span("b", 95, 110),
    ]
    steps = critical_path(phases, reads)
    assert sum(step["ns"] for step in steps) == 120 * MS
    assert [(step["name"], step["ns"] // MS) for step in steps if step["name"].startswith("read")] == [
        ("read a ()", 9),
        ("read b ()", 10),
    ]


def traces_span(name: str, start: int, end: int) -> Any:
    from sockd.observe.trace_spans import Span

    return Span("reads", name, start * MS, end * MS)


def test_intervals() -> None:
    assert union([(5, 7), (0, 2), (2, 3), (6, 9)]) == [(0, 3), (5, 9)]
    assert intersection([(0, 3), (5, 9)], [(2, 6), (8, 20)]) == [(2, 3), (5, 6), (8, 9)]
    assert length([(0, 3), (5, 9)]) == 7


def test_a_trace_says_what_was_imported_after_the_fork() -> None:
    assert describe(trace())["imported"] == [{"package": "a-1-x", "modules": 2, "ns": 30 * MS}]
    assert describe(trace(cold=False))["imported"] == []


def test_traces_of_one_function_are_found_among_others() -> None:
    traces = Traces(TraceConfig(keep=9))
    for number, name in enumerate("fgfg"):
        traces.add(InvokeRequest(name, b"", bytes([number]) * 16, 0), outcome())
    assert [trace.request_id[0] for trace in traces.last(9, "f")] == [2, 0]
    assert len(traces.last(1, "g")) == 1
    traces.add(InvokeRequest("f", b"", bytes([9]) * 16, 0), outcome(cold=False))
    assert [trace.request_id[0] for trace in traces.last(9, "f")] == [9, 2, 0]
    assert [trace.request_id[0] for trace in traces.last(9, "f", "cold")] == [2, 0]
