"""Render the README's pictures from a private worker that serves the demonstration's functions: `make images`.

Needs root, Chromium and playwright. Owns the worker, the S3 server and the browser, and ends all of them.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from benchmarks.harness.client import Client, request
from benchmarks.harness.cold import learn, settle
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.page import CHROMIUM
from benchmarks.s3.process import S3Process
from demo.checks import BUCKET, PICTURE
from demo.run import Demo, demos, prepare

IMAGES = Path(__file__).with_name("images")
PAGE_SIZE, WATERFALL_SIZE = ViewportSize(width=1280, height=1080), ViewportSize(width=1280, height=860)
ROUNDS, ROUND_MS = 60, 250
CALLS_PER_ROUND = 6
STARTS = 20


def main() -> None:
    """Write page.png and waterfall.png."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        S3Process(access_key="demo") as server,
        server.client() as s3,
        running_worker() as worker,
        sync_playwright() as playwright,
    ):
        s3.make_bucket(BUCKET)
        s3.put(BUCKET, PICTURE, (IMAGES.parents[1] / "demo/picture.jpg").read_bytes())
        functions = demos(s3)
        directories = {demo.name: prepare(demo, Path(scratch), server.env()) for demo in functions}
        for name, directory in directories.items():
            worker.deploy(directory, name)
        teach(worker, functions)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=PAGE_SIZE)
        call_randomly(worker, functions, page)
        page.goto(worker.url)
        page.screenshot(path=IMAGES / "page.png")
        page.set_viewport_size(WATERFALL_SIZE)
        page.goto(f"{worker.url}/traces/{cold_start(worker, functions)}")
        page.screenshot(path=IMAGES / "waterfall.png")
        browser.close()


def teach(worker: Worker, functions: list[Demo]) -> None:
    """Have Zygotes made for the packages."""
    for demo in functions:
        for package in demo.packages:
            learn(worker, demo.name, package, body=json.dumps(demo.event).encode())


def call_randomly(worker: Worker, functions: list[Demo], page: Page) -> None:
    """Requests for the chart of the last minute."""
    rng = random.Random(1)
    with Client(worker.host, worker.port) as client:
        for _ in range(ROUNDS):
            for demo in rng.choices(functions, weights=range(len(functions), 0, -1), k=rng.randrange(CALLS_PER_ROUND)):
                client.invoke(demo.name, json.dumps(demo.event).encode())
            page.wait_for_timeout(ROUND_MS)


def cold_start(worker: Worker, functions: list[Demo]) -> str:
    """The request id of a start from the Zygote with pandas: the fastest of some, as others use the machine, too."""
    (demo,) = (each for each in functions if "pandas" in each.packages)
    fresh = request(demo.name, json.dumps(demo.event).encode()).replace(b"\r\n\r\n", b"\r\nX-Sockd-Fresh: 1\r\n\r\n", 1)
    with Client(worker.host, worker.port) as client:
        for _ in range(STARTS):
            client.exchange(fresh)
            settle(worker)  # a new pair of a function and a Zygote is verified first
    traces = worker.json("trace", "--cold", "--function", demo.name, "-n", str(STARTS))
    learned = [each for each in traces if each["node"]]
    return str(min(learned, key=lambda each: each["answered_ns"] - each["arrived_ns"])["request_id"])


if __name__ == "__main__":
    main()
