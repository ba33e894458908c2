"""`APIs`: a warm no-op through /run, through AWS's API and through a function URL, and through boto3, one connection each.

boto3 takes more time for itself than any of them, so it is also timed against a server that answers at once. What AWS's API adds
to /run is then reported twice: as a client without cost of its own sees it, and as boto3 does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Client
from benchmarks.harness.functions import ECHO, Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import running_worker
from benchmarks.warm import in_process_server

RUN, API, URL = "/run", "AWS's API", "a function URL, by path"
BOTO3, BOTO3_ALONE, ALONE = "AWS's API, boto3", "answered at once, boto3", "answered at once"


def measure(run: Run) -> Result:
    import boto3
    from botocore.config import Config

    result = Result("apis")
    with running_worker() as ours, in_process_server() as peer, tempfile.TemporaryDirectory() as scratch:
        ours.deploy(Function("echo", ECHO).write(Path(scratch)), "echo")
        path = ours.json("url", "echo")["path_url"].partition(f":{ours.port}")[2]
        with Client(ours.host, ours.port) as client, Client(peer.host, peer.port) as other:

            def lambda_client(port: int) -> Any:
                keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "local"}
                retries = Config(retries={"max_attempts": 0})
                return boto3.client("lambda", endpoint_url=f"http://127.0.0.1:{port}", config=retries, **keys)

            cases = {
                RUN: raw(client, "/run/echo"),
                API: raw(client, "/2015-03-31/functions/echo/invocations"),
                URL: raw(client, path),
                BOTO3: through(lambda_client(ours.port)),
                BOTO3_ALONE: through(lambda_client(peer.port)),
                ALONE: raw(other, "/run/echo"),
            }
            in_turns(cases, 20)
            samples = in_turns(cases, run.pick(2000, 400))
    for name, times in samples.items():
        result.add(name, "latency", "ms", times)
    p50 = {name: result.row(name, "latency").p50 for name in cases}
    result.aim("what AWS's API adds to /run, p50, ms", p50[API] - p50[RUN], "<= 0.3")
    seen_by_boto3 = (p50[BOTO3] - p50[BOTO3_ALONE]) - (p50[RUN] - p50[ALONE])
    result.aim("the same as boto3 sees it, without its own time, p50, ms", seen_by_boto3, "<= 0.3")
    return result


def raw(client: Client, path: str) -> Callable[[], float]:
    """A request whose bytes are made beforehand, in ms."""
    data = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    return lambda: client.exchange(data).ms


def through(client: Any) -> Callable[[], float]:
    """The same through boto3, from the call to the payload in hand."""

    def call() -> float:
        begun = time.perf_counter()
        client.invoke(FunctionName="echo", Payload=b"{}")["Payload"].read()
        return (time.perf_counter() - begun) * 1000

    return call


if __name__ == "__main__":
    sys.exit(main("apis", measure, "The APIs of a worker, and what boto3 makes of them."))
