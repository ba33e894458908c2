"""`python -m demo.run`: deploy real functions with real packages, invoke them cold and warm, show what it cost and why.

Starts a worker and an S3 of its own, and leaves nothing behind. Exits 1 when any answer is wrong.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Answer, BadAnswer, Client
from benchmarks.harness.cold import NeverLearned, learn, name_of, settle
from benchmarks.harness.results import median
from benchmarks.harness.table import number, print_table
from benchmarks.harness.worker import Worker, WorkerFailed, running_worker
from benchmarks.s3.client import Client as S3
from benchmarks.s3.process import S3Process, ServerFailed
from demo.checks import (
    BUCKET,
    FUNCTIONS,
    PICTURE,
    WrongAnswer,
    check_noop,
    check_page,
    check_report,
    check_thumbnail,
)
from demo.failure import show_failure
from demo.images import show_image, start_image, why_no_images
from demo.initscripts import show_initscript
from demo.snapshots import show_snapshot

PHASES = ("queue", "setup", "init", "exec")
WARM_REQUESTS = 20
LEARN_DEADLINE_S = 900.0
"""Ten times what a busy host takes: an emulated one, such as scripts/vm boots, takes minutes."""
PATIENT = {"function": {"init_timeout_s": 120, "timeout_s": 60}, "sandbox": {"spawn_deadline_s": 60}}
"""The worker's configuration: deadlines, too, for such a machine."""
NOTHING_LEARNED = "--no-check"
"""An option of a deploy: the start that checks a version would show what it imports, before its first request."""
FIRST, LATER = "cold, nothing learned", "cold, Zygotes ready"
STARTED = time.monotonic()


@dataclass(frozen=True, slots=True)
class Demo:
    """One function to show."""

    name: str
    packages: tuple[str, ...]
    """What a Zygote is expected to have learned, as distributions are named."""
    event: dict[str, Any]
    check: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of the table: the answer it is about (of several: the median one)."""

    function: str
    case: str
    answer: Answer


def main() -> int:
    """Run the demonstration. Returns the exit status."""
    try:
        with tempfile.TemporaryDirectory(prefix="sockd-demo-") as scratch:
            say("starting an S3 and a worker")
            with S3Process(access_key="demo") as server, server.client() as s3, running_worker(PATIENT) as worker:
                why_not = why_no_images(worker)
                if why_not:
                    say(f"leaving out functions in container images: {why_not}")
                else:
                    say("making a container image, and running a function in it")
                    first = start_image(worker, Path(scratch))
                shown = show(worker, s3, Path(scratch), server.env())
                say("running imgrec, which fetches a picture and weights, with and without an initscript")
                show_initscript(worker, Path(scratch))
                if not why_not:
                    say("starting the function in the container image once more")
                    show_image(worker, first)
                say("loading a model for 2 s, in each start and in a snapshot")
                show_snapshot(worker, Path(scratch))
                say("calling a function that fails")
                show_failure(worker)
    except (WrongAnswer, BadAnswer, NeverLearned, WorkerFailed, ServerFailed, TimeoutError) as error:
        print("demo failed:", error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    explain(shown)
    say("every answer was right" + (f"; without container images: {why_not}" if why_not else ""))
    return 0


def demos(s3: S3) -> list[Demo]:
    picture = {"bucket": BUCKET, "key": PICTURE}
    return [
        Demo("noop", (), {}, check_noop),
        Demo("thumbnailer", ("pillow", "boto3"), picture, lambda answer: check_thumbnail(answer, s3)),
        Demo("report", ("pandas",), {}, check_report),
        Demo("page", ("django",), {"path": "/planets/", "query": "who=stranger"}, check_page),
    ]


def show(worker: Worker, s3: S3, scratch: Path, variables: dict[str, str]) -> list[Shown]:
    """Deploy and invoke everything, and print tables as they become known. Raises WrongAnswer.

    Args:
        variables: with which a function finds S3."""
    s3.make_bucket(BUCKET)
    s3.put(BUCKET, PICTURE, Path(__file__).with_name("picture.jpg").read_bytes())
    functions = demos(s3)
    directories = {demo.name: prepare(demo, scratch, variables) for demo in functions}
    deploys = {}
    for demo in functions:
        say(f"deploying {demo.name} ({', '.join(demo.packages) or 'no packages'})")
        deploys[demo.name] = worker.deploy(directories[demo.name], demo.name, NOTHING_LEARNED)
    print_table(
        "deploy: resolve, download, install (once per package and worker)",
        ("function", "s"),
        [(name, number(seconds)) for name, seconds in deploys.items()],
    )
    print_tree(worker, "the Zygote tree before the first request")
    shown = [first_request(worker, demo, demo.name, FIRST) for demo in functions]
    warm = [warm_requests(worker, demo) for demo in functions]
    for demo in functions:
        for package in demo.packages:
            say(f"waiting for a Zygote that holds {package}")
            learn(worker, demo.name, package, body=json.dumps(demo.event).encode(), deadline_s=LEARN_DEADLINE_S)
    for demo in functions:
        say(f"deploying {demo.name} again")
        shown.append(learned_request(worker, demo, directories[demo.name]))
    print_tree(worker, "the Zygote tree after")
    shown = [line for demo in functions for line in [*shown, *warm] if line.function == demo.name]
    print_costs(shown)
    return shown


def prepare(demo: Demo, scratch: Path, variables: dict[str, str]) -> Path:
    """A copy of the function's directory that knows where S3 is."""
    directory = scratch / demo.name
    shutil.copytree(FUNCTIONS / demo.name, directory)
    if demo.name == "thumbnailer":
        with (directory / "sockd.toml").open("a") as settings:
            settings.write("\n[env]\n" + "".join(f'{key} = "{value}"\n' for key, value in variables.items()))
    return directory


def first_request(worker: Worker, demo: Demo, name: str, case: str) -> Shown:
    """Invoke a function that has never run under this name. Raises WrongAnswer, also when it was not a cold start."""
    with Client(worker.host, worker.port) as client:
        answer = client.invoke(name, json.dumps(demo.event).encode())
    if not answer.cold:
        raise WrongAnswer(f"the first request to {name} was not a cold start")
    demo.check(json.loads(answer.body))
    return Shown(demo.name, case, answer)


def learned_request(worker: Worker, demo: Demo, directory: Path) -> Shown:
    """Deploy a function's code under another name, and invoke it once its deploy has shown what it imports.

    Raises: WrongAnswer, also when no Zygote with its packages has served the request."""
    again = f"{demo.name}-again"
    worker.deploy(directory, again)
    settle(worker, LEARN_DEADLINE_S)
    before = zygote_starts(worker, demo.packages)
    shown = first_request(worker, demo, again, LATER)
    if zygote_starts(worker, demo.packages) == before:
        raise WrongAnswer(f"no Zygote with {' and '.join(demo.packages)} has served the first request to {again}")
    return shown


def zygote_starts(worker: Worker, packages: tuple[str, ...]) -> int:
    """How many sandboxes were forked from Zygotes that hold all of these packages."""
    nodes, count = [worker.json("tree")["root"]], 0
    for node in nodes:
        nodes += node["children"]
        count += node["starts"] * (set(packages) <= set(map(name_of, node["packages"])))
    return count


def warm_requests(worker: Worker, demo: Demo) -> Shown:
    """Invoke a function whose sandbox is there, some times; the median one. Raises WrongAnswer."""
    body = json.dumps(demo.event).encode()
    with Client(worker.host, worker.port) as client:
        client.invoke(demo.name, body)
        answers = [client.invoke(demo.name, body) for _ in range(WARM_REQUESTS)]
    for answer in answers:
        demo.check(json.loads(answer.body))
    middle = median(answer.ms for answer in answers)
    return Shown(demo.name, "warm", next(answer for answer in answers if answer.ms == middle))


def print_costs(shown: list[Shown]) -> None:
    rows = []
    for line in shown:
        phases = line.answer.phases_ms()
        rest = line.answer.ms - sum(phases.values())
        cells = [number(phases.get(phase, 0.0)) for phase in PHASES]
        origin = line.answer.headers["x-sockd-origin"]
        rows.append((line.function, line.case, origin, number(line.answer.ms), *cells, number(rest)))
    headings = ("function", "request", "from", "total ms", *PHASES, "http")
    print_table("what a request cost, and where the time went (ms, as the client saw it)", headings, rows)


def print_tree(worker: Worker, title: str) -> None:
    print(f"\n{title} (sockd tree):\n{worker.cli('tree').rstrip()}\n", flush=True)


def explain(shown: list[Shown]) -> None:
    """Say with this run's numbers why it was fast."""
    total = {(line.function, line.case): line.answer.ms for line in shown}
    disk, zygote = total["report", FIRST], total["report", LATER]
    noop = total["noop", LATER]
    print(f"""
Why it was fast. A cold start has three costs, and each was paid before the request came. The sandbox ({number(noop)} ms
cold for the no-op, HTTP included) is a tree of bind mounts and a cgroup that stood ready, not a container that is
assembled; Python is not started but forked from an interpreter that runs, straight into its own namespaces. Packages were
installed once, at deploy, each in a directory of its own. And after the functions were seen importing pandas, Django,
boto3 and Pillow, Zygotes imported them ahead: the first request to another function with the report's code took
{number(zygote)} ms instead of {number(disk)}, as its deploy had shown that it imports the same. What `init` still shows is
the function's own code: reading its CSV, making its S3 client, setting Django up. imgrec has a fourth cost: fetching
18 MB. Its initscript, 5 KB of WASM, asked for both objects the moment the request came, on open connections, in parallel
ranges, straight into memory that the function shares: the function imported no S3 client, and copied nothing. Warm
requests go to the sandbox that is there; it is frozen when it is idle.
""")


def say(text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
