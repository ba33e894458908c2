"""Warm load: requests from a list, again and again, for a few seconds.

By wrk where it is installed, else by processes of our own client.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.client import closed_loop
from benchmarks.harness.results import quantile
from benchmarks.harness.worker import REPOSITORY

WRK_SCRIPT = """\
local requests, next = {}, 0
local file = io.open("%s", "rb")
while true do
  local size = file:read("*l")
  if not size then break end
  requests[#requests + 1] = file:read(tonumber(size))
end
request = function()
  next = next %% #requests + 1
  return requests[next]
end
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
    functions: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """p50 and p99 of each function's requests, in ms; none by wrk, which knows the percentiles of all requests only."""


def generator() -> str:
    """The name of the load generator that `drive` uses."""
    return "wrk" if shutil.which("wrk") else "python"


def drive(host: str, port: int, requests: Sequence[bytes], *, concurrency: int, seconds: float) -> Load:
    """Closed-loop load by these requests, in this order, again and again. Raises LoadFailed (or BadAnswer) when one fails."""
    if generator() == "wrk":
        return drive_by_wrk(f"http://{host}:{port}", requests, concurrency, seconds)
    return drive_by_python(host, port, requests, concurrency, seconds)


def drive_by_wrk(url: str, requests: Sequence[bytes], concurrency: int, seconds: float) -> Load:
    with tempfile.NamedTemporaryFile("wb") as data, tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        data.write(framed(requests))
        data.flush()
        script.write(WRK_SCRIPT % data.name)
        script.flush()
        connections = [f"-c{concurrency}", "-t1", f"-d{max(1, round(seconds))}s", "-s", script.name]
        done = subprocess.run(["wrk", *connections, url], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.rpartition("@")[2])
    if report["errors"] or not report["requests"]:
        raise LoadFailed(f"{report['errors']} of {report['requests']} requests failed")
    rate = report["requests"] / (report["duration_us"] / 1e6)
    return Load(rate, report["p50_us"] / 1000, report["p99_us"] / 1000, report["requests"])


def drive_by_python(host: str, port: int, requests: Sequence[bytes], concurrency: int, seconds: float) -> Load:
    """Two processes at most: the machine is shared with the server. Raises LoadFailed when one of them fails."""
    processes = min(2, concurrency)
    shares = [concurrency // processes + (i < concurrency % processes) for i in range(processes)]
    with contextlib.ExitStack() as stack:
        # Not multiprocessing's: its resource tracker stays until this process ends.
        clients = [stack.enter_context(client_process(host, port, share, seconds)) for share in shares]
        for client in clients:
            assert client.stdin
            client.stdin.write(framed(requests))
            client.stdin.close()
        by_function: dict[str, list[float]] = defaultdict(list)
        for client in clients:
            for name, measured in latencies_of(client).items():
                by_function[name] += measured
    ordered = sorted(itertools.chain.from_iterable(by_function.values()))
    functions = {name: percentiles(measured) for name, measured in sorted(by_function.items())}
    return Load(len(ordered) / seconds, *percentiles(ordered), len(ordered), functions)


def percentiles(latencies: Sequence[float]) -> tuple[float, float]:
    """Return the p50 and the p99."""
    ordered = sorted(latencies)
    return quantile(ordered, 0.5), quantile(ordered, 0.99)


def client_process(host: str, port: int, concurrency: int, seconds: float) -> subprocess.Popen[bytes]:
    """A process that reads framed requests from its input and writes the latencies of a closed loop, as JSON."""
    command = [sys.executable, "-m", "benchmarks.harness.load", host, str(port), str(concurrency), str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)


def latencies_of(client: subprocess.Popen[bytes]) -> dict[str, list[float]]:
    """Return the latencies that a client's process measured, in ms, by function."""
    assert client.stdout
    report = client.stdout.read()
    if client.wait() != 0:
        raise LoadFailed("a client's process failed; what it says is above")
    measured: dict[str, list[float]] = json.loads(report)
    return measured


def latencies(
    host: str, port: int, requests: Sequence[bytes], concurrency: int, seconds: float
) -> dict[str, list[float]]:
    """Return the latencies in ms, by function, of a closed loop that stops sending after `seconds`."""
    end = time.perf_counter() + seconds
    measured: dict[str, list[float]] = defaultdict(list)
    for answer in closed_loop(host, port, concurrency, until(requests, end)):
        measured[function_of(answer.sent)].append(answer.ms)
    return measured


def function_of(request: bytes) -> str:
    """Return the name in the target of `POST /run/NAME`."""
    target = request.partition(b"\r\n")[0].split(b" ")[1]
    return target.removeprefix(b"/run/").decode()


def until(requests: Sequence[bytes], end: float) -> Iterator[bytes]:
    for request in itertools.cycle(requests):
        if time.perf_counter() >= end:
            return
        yield request


def framed(requests: Sequence[bytes]) -> bytes:
    """Each with its length before it, on a line."""
    return b"".join(b"%d\n%s" % (len(request), request) for request in requests)


def unframed(data: bytes) -> list[bytes]:
    """What `framed` has made one of."""
    requests, at = list[bytes](), 0
    while at < len(data):
        begin = data.index(b"\n", at) + 1
        at = begin + int(data[at:begin])
        requests.append(data[begin:at])
    return requests


if __name__ == "__main__":
    host_, port_, concurrency_, seconds_ = sys.argv[1:]
    requests_ = unframed(sys.stdin.buffer.read())
    json.dump(latencies(host_, int(port_), requests_, int(concurrency_), float(seconds_)), sys.stdout)
