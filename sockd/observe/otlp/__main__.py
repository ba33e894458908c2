"""The exporter: reads invocations that are over from its stdin, and sends their spans to the collector.

Owns the queue between the two, bounded: the daemon is never kept waiting. Two threads, one that reads and one that sends.
At the end of the input what is left is sent. SDK, retries, compression and headers are OpenTelemetry's, with its variables.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from sockd.base.log_format import log_to_stderr
from sockd.observe.otlp.spans import spans_of
from sockd.observe.otlp.wire import Finished, Tally, frames

BATCH = 256
LINGER_S = 0.5
"""How long a batch waits for more."""
_decoder = msgspec.msgpack.Decoder(Finished)


def main() -> None:
    """Export until the input ends."""
    log_to_stderr(logging.WARNING)
    os.nice(10)  # requests come first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is the daemon's, which closes our input
    waiting: queue.Queue[bytes | None] = queue.Queue(int(sys.argv[1]))
    tally = Tally()
    sender = threading.Thread(target=send, args=(waiting, tally))
    sender.start()
    buffer = bytearray()
    while data := os.read(0, 1 << 16):
        buffer += data
        for body in frames(buffer):
            try:
                waiting.put_nowait(body)
            except queue.Full:
                tally.dropped += 1
    waiting.put(None)
    sender.join()


def send(waiting: queue.Queue[bytes | None], tally: Tally) -> None:
    """Send batch by batch, and tell of each."""
    exporter = OTLPSpanExporter()
    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or os.environ.get("OTEL_SERVICE_NAME")
    resource = Resource.create({} if named else {SERVICE_NAME: "sockd"})
    is_over = False
    while not is_over:
        batch, is_over = take(waiting)
        if not batch:
            continue
        epoch_ns = time.time_ns() - time.monotonic_ns()
        spans = [span for body in batch for span in spans_of(_decoder.decode(body), resource, epoch_ns)]
        if exporter.export(spans) is SpanExportResult.SUCCESS:
            tally.exported += len(batch)
        else:
            tally.failed += len(batch)
        os.write(1, msgspec.json.encode(tally) + b"\n")


def take(waiting: queue.Queue[bytes | None]) -> tuple[list[bytes], bool]:
    """The next batch, and whether it is the last."""
    batch: list[bytes] = []
    body = waiting.get()
    until_s = time.monotonic() + LINGER_S
    while body is not None:
        batch.append(body)
        if len(batch) == BATCH:
            return batch, False
        try:
            body = waiting.get(timeout=max(until_s - time.monotonic(), 0))
        except queue.Empty:
            return batch, False
    return batch, True


if __name__ == "__main__":
    main()
