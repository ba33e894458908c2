"""The demo's function in a container image: made here without Docker, deployed, and started with and without a startup profile.

The image has an interpreter and its standard library below /opt/python, and a program that speaks AWS's Runtime API. It is an OCI
layout, which `sockd deploy --image oci:DIRECTORY` takes as it takes those that docker, buildah or umoci make.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness.client import Client
from benchmarks.harness.table import number, print_table
from benchmarks.harness.worker import Worker
from benchmarks.image_parts import python_image
from demo.checks import WrongAnswer

NAME = "greeter"
ANSWER = """{"greeting": f"{os.environ['GREETING']}, {event['name']}!", "python": sys.executable}"""
EXPECTED = {"greeting": "Hello, world!", "python": f"/{python_image.PYTHON}"}


def why_no_images(worker: Worker) -> str:
    """The reason for which this worker runs no functions in images; empty if it does. Raises: WorkerFailed."""
    return str(worker.json("status")["images"]["why_not"])


def start_image(worker: Worker, scratch: Path) -> str:
    """Make the image, deploy its function, and start it for the first time; how long that took, in ms. Raises: WrongAnswer;
    WorkerFailed."""
    layout = scratch / "image"
    layers = [python_image.interpreter_layer(scratch / "interpreter.tar")]
    text, environment = python_image.program(answer=ANSWER), [*python_image.ENVIRONMENT, "GREETING=Hello"]
    python_image.write_image(layout, layers, NAME, text, environment)
    worker.cli("deploy", NAME, "--image", f"oci:{layout}", "--timeout", "20", "--memory", "256")
    return cold(worker)


def show_image(worker: Worker, first: str) -> None:
    """Start it once more, with what the worker has learned of its first start. Raises: WrongAnswer; WorkerFailed."""
    image = next(row for row in worker.json("images", "ls") if NAME in row["functions"])
    profile = worker.state_dir / "images" / image["digest"].removeprefix("sha256:") / "profile"
    worker.cli("rm", NAME)  # nothing runs in the image any more, so it is unmounted
    worker.cli("deploy", NAME, "--image", image["digest"], "--timeout", "20", "--memory", "256")
    later = "with a startup profile" if profile.exists() else "again"
    rows = [("the first, without a startup profile", first), (f"mounted anew, {later}", cold(worker))]
    print_table(f"cold starts in a container image of {image['size_bytes'] >> 20} MB", ("start", "ms"), rows)


def cold(worker: Worker) -> str:
    """A first request: its time. Raises: WrongAnswer."""
    with Client(worker.host, worker.port) as client:
        answer = client.invoke(NAME, b'{"name": "world"}')
    if not answer.cold or json.loads(answer.body) != EXPECTED:
        raise WrongAnswer(f"the image's function answered {answer.body!r}, cold: {answer.cold}")
    return number(answer.ms)
