"""The exporter's process as the daemon knows it: bounded, never waited for, replaced when it dies; every loss is counted."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sockd.base.config import OtlpConfig
from sockd.base.errors import BadConfig
from sockd.base.telemetry import SpanContext, Times
from sockd.observe.otlp import client
from sockd.observe.otlp.client import SpanExport, environment_of
from sockd.observe.otlp.wire import MAX_FRAME_BYTES, frames
from sockd.observe.traces import Trace
from tests.daemon.collector import Collector


def trace() -> Trace:
    now_ns = time.monotonic_ns()
    span = SpanContext(os.urandom(16), os.urandom(8), b"")
    moments = (now_ns - 300_000, now_ns, now_ns - 250_000)
    return Trace(os.urandom(16), "f", "1", "warm", "s", "", Times(exec=200_000), *moments, span=span)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def exporting(test: Callable[[SpanExport], Coroutine[Any, Any, None]], **settings: Any) -> SpanExport:
    async def run() -> SpanExport:
        export = SpanExport.of(OtlpConfig(**settings), dict(os.environ))
        assert export is not None
        try:
            await test(export)
        finally:
            await export.aclose()
        return export

    return asyncio.run(run())


def test_what_is_added_just_before_the_end_arrives(collector: Collector) -> None:
    async def add(export: SpanExport) -> None:
        for _ in range(300):
            export.add(trace())

    export = exporting(add, endpoint=collector.url)
    assert len({span.trace_id for span in collector.spans}) == 300
    assert export.counts() == {"exported": 300, "failed": 0, "dropped": 0}


def test_a_process_that_dies_is_replaced_and_what_it_held_is_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RESTART_S", 0.0)

    async def add(export: SpanExport) -> None:
        export.add(trace())
        await asyncio.to_thread(collector.wait, len)
        process = export._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        export.add(trace())
        await asyncio.to_thread(collector.wait, lambda spans: len({span.trace_id for span in spans}) == 2)

    counts = exporting(add, endpoint=collector.url).counts()
    assert counts["exported"] + counts["dropped"] == 2 and counts["exported"] >= 1


def test_a_collector_that_does_not_answer_delays_no_request_and_drops_are_counted() -> None:
    silent = socket.create_server(("127.0.0.1", 0))

    took = []

    async def add(export: SpanExport) -> None:
        for _ in range(3000):
            before = time.monotonic()
            export.add(trace())
            took.append(time.monotonic() - before)
            await asyncio.sleep(0)

    with silent:
        begun = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        export = exporting(add, endpoint=url, queue=100, flush_s=0.5)
        assert time.monotonic() - begun < 10
    assert (
        sorted(took)[len(took) // 2] < 0.1
    )  # a caller that waited would do so once there is no more room, behind the 100th
    assert export.counts() == {"exported": 0, "failed": 0, "dropped": 3000}


def test_it_is_on_when_somebody_says_where_to() -> None:
    async def of(config: OtlpConfig, **environ: str) -> SpanExport | None:
        return SpanExport.of(config, environ)

    def is_on(config: OtlpConfig, **environ: str) -> bool:
        return asyncio.run(of(config, **environ)) is not None

    assert not is_on(OtlpConfig())
    assert is_on(OtlpConfig(endpoint="http://x:4318")) and is_on(OtlpConfig(), OTEL_EXPORTER_OTLP_ENDPOINT="http://x")
    assert is_on(OtlpConfig(), OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://x/v1/traces")
    assert not is_on(OtlpConfig(), OTEL_EXPORTER_OTLP_ENDPOINT="http://x", OTEL_SDK_DISABLED="TRUE")
    with pytest.raises(BadConfig, match="sample"):
        is_on(OtlpConfig(endpoint="http://x", sample=2))


def test_without_the_extra_it_is_an_error_to_ask_for_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "is_installed", lambda: False)
    assert SpanExport.of(OtlpConfig(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
    with pytest.raises(BadConfig, match=r"pip install .*opentelemetry-sdk"):
        SpanExport.of(OtlpConfig(endpoint="http://x"), {})


def test_the_configuration_wins_over_the_environment_and_other_variables_stay_out() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/v1/traces",
        "OTEL_EXPORTER_OTLP_HEADERS": "k=v",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert environment_of(OtlpConfig(endpoint="http://b"), environ) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b",
        "OTEL_EXPORTER_OTLP_HEADERS": "k=v",
    }


def test_sampling_is_by_trace_and_as_often_as_it_says() -> None:
    async def share(sample: float) -> float:
        export = SpanExport(OtlpConfig(sample=sample), {})
        ids = [os.urandom(16) for _ in range(4000)]
        chosen = [each for each in ids if export.samples(each)]
        assert chosen == [each for each in ids if export.samples(each)]
        return len(chosen) / len(ids)

    assert asyncio.run(share(1.0)) == 1 and asyncio.run(share(0.0)) == 0
    assert asyncio.run(share(0.25)) == pytest.approx(0.25, abs=0.05)


def test_frames_come_whole_however_they_are_cut() -> None:
    data = b"".join(len(body).to_bytes(4) + body for body in (b"", b"a", b"b" * 1000))
    for step in (1, 3, 5000):
        buffer, found = bytearray(), []
        for start in range(0, len(data), step):
            buffer += data[start : start + step]
            found += list(frames(buffer))
        assert found == [b"", b"a", b"b" * 1000] and not buffer
    with pytest.raises(ValueError, match="a frame of"):
        list(frames(bytearray((MAX_FRAME_BYTES + 1).to_bytes(4))))
