"""Warm load: many requests of one kind for a few seconds. By wrk where it is installed, else by processes of our own client."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.client import closed_loop, request
from benchmarks.results import quantile
from benchmarks.worker import REPOSITORY

WRK_SCRIPT = """\
wrk.method = "POST"
wrk.body = [==[%s]==]
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n@{"requests": %%d, "duration_us": %%d, "errors": %%d, "p50_us": %%d, "p99_us": %%d}\\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


class LoadFailed(Exception):
    """Some requests were not answered with 200."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a load generator saw."""

    rate: float
    """Answers per second."""
    p50_ms: float
    p99_ms: float
    requests: int


def generator() -> str:
    """The name of the load generator that `drive` uses."""
    return "wrk" if shutil.which("wrk") else "python"


def drive(host: str, port: int, function: str, body: bytes, *, concurrency: int, seconds: float) -> Load:
    """Closed-loop load on one function. Raises LoadFailed (or BadAnswer) when any request fails."""
    if generator() == "wrk":
        return drive_by_wrk(f"http://{host}:{port}/run/{function}", body, concurrency, seconds)
    return drive_by_python(host, port, request(function, body), concurrency, seconds)


def drive_by_wrk(url: str, body: bytes, concurrency: int, seconds: float) -> Load:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % body.decode())
        script.flush()
        connections = [f"-c{concurrency}", "-t1", f"-d{max(1, round(seconds))}s", "-s", script.name]
        done = subprocess.run(["wrk", *connections, url], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.rpartition("@")[2])
    if report["errors"] or not report["requests"]:
        raise LoadFailed(f"{report['errors']} of {report['requests']} requests failed")
    rate = report["requests"] / (report["duration_us"] / 1e6)
    return Load(rate, report["p50_us"] / 1000, report["p99_us"] / 1000, report["requests"])


def drive_by_python(host: str, port: int, data: bytes, concurrency: int, seconds: float) -> Load:
    """Two processes at most: the machine is shared with the server. Raises LoadFailed when one of them fails."""
    processes = min(2, concurrency)
    shares = [concurrency // processes + (i < concurrency % processes) for i in range(processes)]
    with contextlib.ExitStack() as stack:
        # Not multiprocessing's: its resource tracker stays until this process ends.
        clients = [stack.enter_context(client_process(host, port, share, seconds)) for share in shares]
        for client in clients:
            assert client.stdin
            client.stdin.write(data)
            client.stdin.close()
        ordered = sorted(itertools.chain.from_iterable(latencies_of(client) for client in clients))
    return Load(len(ordered) / seconds, quantile(ordered, 0.5), quantile(ordered, 0.99), len(ordered))


def client_process(host: str, port: int, concurrency: int, seconds: float) -> subprocess.Popen[bytes]:
    """A process that reads the bytes of a request from its input and writes the latencies of a closed loop, as JSON."""
    command = [sys.executable, "-m", "benchmarks.load", host, str(port), str(concurrency), str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)


def latencies_of(client: subprocess.Popen[bytes]) -> list[float]:
    """What a client's process measured, in ms."""
    assert client.stdout
    report = client.stdout.read()
    if client.wait() != 0:
        raise LoadFailed("a client's process failed; what it says is above")
    latencies: list[float] = json.loads(report)
    return latencies


def latencies(host: str, port: int, data: bytes, concurrency: int, seconds: float) -> list[float]:
    """Latencies in ms of a closed loop that stops sending after `seconds`."""
    return [answer.ms for answer in closed_loop(host, port, concurrency, until(data, time.perf_counter() + seconds))]


def until(data: bytes, end: float) -> Iterator[bytes]:
    while time.perf_counter() < end:
        yield data


if __name__ == "__main__":
    host_, port_, concurrency_, seconds_ = sys.argv[1:]
    json.dump(latencies(host_, int(port_), sys.stdin.buffer.read(), int(concurrency_), float(seconds_)), sys.stdout)
