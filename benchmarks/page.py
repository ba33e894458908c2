"""`page`: how long the page at `/` takes, in the worker and in a browser, and what it costs while nobody does anything."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.client import Client
from benchmarks.harness.functions import ECHO, Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main
from benchmarks.harness.worker import Worker, running_worker

INVOCATIONS = 200
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""As everywhere but in some containers: only the very first page is made without."""
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
SETTLE_S = 8.0
"""After the last invocation: longer than the worker's housekeeping and the spares' last refill."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure(run: Run) -> Result:
    result = Result("page")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Function("echo", ECHO).write(Path(scratch))
        firsts = []
        for _ in range(run.pick(7, 3)):
            run.say("the first page of a worker")
            with running_worker(environment=BYTECODE) as ours:
                firsts.append(get(ours, "/")[1])
        result.add("/, the first after the start", "server", "ms", firsts, tail=False)
        with running_worker(environment=BYTECODE) as ours:
            fill(run, ours, directory)
            for path in ("/", "/functions/echo0"):
                before, count = cpu_s(ours.process.pid), run.pick(200, 50)
                result.add(path, "server", "ms", [get(ours, path)[1] for _ in range(count)])
                result.add(path, "CPU", "ms", [(cpu_s(ours.process.pid) - before) / count * 1e3], tail=False)
            result.add("/, a first load", "transfer", "KB", [transfer_kb(ours)], tail=False)
            measure_browser(run, ours, result)
            measure_idle(run, ours, result)
    judge(result)
    return result


def fill(run: Run, ours: Worker, directory: Path) -> None:
    """Something to show."""
    count = run.pick(20, 8)
    run.say(f"{count} functions")
    for number in range(count):
        ours.deploy(directory, f"echo{number}")
    with Client(ours.host, ours.port) as client:
        for number in range(INVOCATIONS):
            client.invoke(f"echo{number % count}")


def get(ours: Worker, path: str) -> tuple[bytes, float]:
    """What a GET answers, as a browser would ask, and how many ms that took, with a connection of its own."""
    begun = time.perf_counter()
    with socket.create_connection((ours.host, ours.port)) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    took_ms = (time.perf_counter() - begun) * 1e3
    first, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in first.splitlines()[0], first
    return body, took_ms


def transfer_kb(ours: Worker) -> float:
    """The page and everything that it names, as it comes over the wire, without headers."""
    page = get(ours, "/")[0]
    urls = re.findall(r'(/static/[^" ]+)[" ]', gzip.decompress(page).decode())
    return (len(page) + sum(len(get(ours, url)[0]) for url in urls)) / 1000


def measure_browser(run: Run, ours: Worker, result: Result) -> None:
    """Chromium's load event: of a line of text, of the page in a context that has nothing, and again in the same tab."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        result.notes.append("no browser: playwright is not installed")
        return
    if CHROMIUM is None:
        result.notes.append("no browser: apt-get install chromium")
        return
    run.say("Chromium")
    cases = {
        "/healthz, Chromium, the floor": "/healthz",
        "/, Chromium, nothing cached": "/",
        "/, Chromium, in the same tab again": "/",
    }
    times: dict[str, list[float]] = {case: [] for case in cases}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(run.pick(20, 5)):
            context = browser.new_context()
            page = context.new_page()
            for case, path in cases.items():
                page.goto(f"{ours.url}{path}", wait_until="load")
                times[case].append(page.evaluate(LOADED))
            context.close()
        browser.close()
    for case, seen in times.items():
        result.add(case, "load event", "ms", seen)


def measure_idle(run: Run, ours: Worker, result: Result) -> None:
    """The worker's CPU time while one page is open, or none, and nothing is invoked."""
    seconds = run.pick(30.0, 10.0)
    time.sleep(SETTLE_S)
    run.say(f"{seconds:g} s without a viewer, {seconds:g} s with one")
    result.add("idle, nobody looks", "CPU", "%", [cpu_share(ours, seconds)], tail=False)
    with viewer(ours):
        result.add("idle, one open page", "CPU", "%", [cpu_share(ours, seconds)], tail=False)


@contextmanager
def viewer(ours: Worker) -> Iterator[None]:
    """A page that is kept up to date."""
    page = gzip.decompress(get(ours, "/")[0]).decode()
    address = page.partition('data-events="')[2].partition('"')[0].replace("&amp;", "&")
    with socket.create_connection((ours.host, ours.port)) as connection:
        connection.sendall(f"GET {address} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b" 200 " in connection.recv(1 << 16)
        yield


def cpu_share(ours: Worker, seconds: float) -> float:
    """Per cent of one processor that the daemon uses from now on."""
    before = cpu_s(ours.process.pid)
    time.sleep(seconds)
    return (cpu_s(ours.process.pid) - before) / seconds * 100


def cpu_s(pid: int) -> float:
    """User and system time of a process (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def judge(result: Result) -> None:
    result.aim(
        "the first page after the start, server, p50 ms",
        result.row("/, the first after the start", "server").p50,
        "<= 100",
    )
    result.aim("the page, server, p50 ms", result.row("/", "server").p50, "<= 10")
    result.aim("a first load, KB", result.row("/, a first load", "transfer").p50, "<= 100")
    result.aim("CPU with one open page, idle, %", result.row("idle, one open page", "CPU").p50, "<= 1")
    if any(row.metric == "load event" for row in result.rows):
        for case in ("nothing cached", "in the same tab again"):
            value = result.row(f"/, Chromium, {case}", "load event").p50
            result.aim(f"Chromium's load event, {case}, p50 ms", value, "<= 100")


if __name__ == "__main__":
    sys.exit(main("page", measure, "The page at /: server and browser time, transfer, CPU while idle."))
