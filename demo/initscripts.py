"""The second half of the demonstration: a function that fetches a picture and weights, with and without an initscript."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.harness.worker import REPOSITORY, Worker, WorkerFailed, sockd

REPETITIONS = 4


def show_initscript(worker: Worker, scratch: Path) -> None:
    """Run `imgrec` on the worker, with S3 as far away as in the initscript paper, and draw where the time went.

    Raises WorkerFailed, also for a wrong answer."""
    _sockd("sebs", "fetch")
    options = [
        "--benches",
        "imgrec",
        "--arm",
        "shim",
        "--arm",
        "initscript",
        "--repetitions",
        str(REPETITIONS),
        "--paper",
    ]
    table = _sockd("sebs", "run", *options, "--out", str(scratch / "sebs"), "--state-dir", str(worker.state_dir))
    print(f"\nstart latency: from the start of the sandbox to the first line that works on data (ms)\n\n{table}")
    script = next(trace for trace in worker.json("trace") if trace["initscript"] == "exit")
    print(f"one of them with its initscript (sockd trace):\n\n{worker.cli('trace', script['request_id'])}", flush=True)


def _sockd(*arguments: str) -> str:
    done = subprocess.run([*sockd(), *arguments], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        said = "\n".join(filter(None, (done.stderr.strip(), done.stdout.strip())))
        raise WorkerFailed(f"sockd {' '.join(arguments)} ended with status {done.returncode}: {said}")
    return done.stdout
