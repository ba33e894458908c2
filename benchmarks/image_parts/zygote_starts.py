"""Cold starts of handlers inside a container image, forked from Zygotes of the image's Python, beside the same ones outside.

Both have the same version of Python and of numpy, and their Zygotes hold it. Neither worker has spares, and no request finds a
sandbox of an earlier one."""

from __future__ import annotations

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Client
from benchmarks.harness.cold import ColdFunction, NeverLearned, cold_config, collector, learn
from benchmarks.harness.functions import NOOP
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.image_parts import python_image
from benchmarks.image_parts.first_answer import DISK
from benchmarks.image_parts.oci_layout import write_layout, write_text_layer
from benchmarks.image_parts.python_image import MTIME_S, NoPackages

NUMPY = "numpy==1.26.4"
HANDLERS = {"noop": NOOP, "numpy": f"import numpy\n\n\n{NOOP}"}
SETTINGS = {"memory_mb": 512, "timeout_s": 30, "init_timeout_s": 60}
GAP_S = 0.01
LEARN_DEADLINE_S = 60.0


def measure(run: Run, result: Result) -> None:
    """Needs root and the index of Python packages."""
    run.say("cold starts from Zygotes inside an image")
    with (
        tempfile.TemporaryDirectory(prefix="sockd-zygotes-", dir=DISK) as directory,
        running_worker(cold_config(spares=0)) as plain,
        running_worker(cold_config(spares=0)) as imaged,
    ):
        scratch = Path(directory)
        try:
            layout = make_image(scratch)
        except NoPackages as error:
            result.notes.append(f"Zygotes in images: not measured: {error}")
            return
        deploy(plain, imaged, scratch, layout)
        try:
            learn(plain, "numpy", "numpy")
        except NeverLearned as error:
            result.notes.append(f"Zygotes in images: not measured: {error}")
            return
        learn_in_image(imaged)
        starts = {
            (name, where): ColdFunction(worker, name)
            for name in HANDLERS
            for where, worker in (("host", plain), ("image", imaged))
        }
        samples: dict[str, list[float]] = {f"{name}, {where}": [] for name, where in starts}
        batches = {
            f"{name}, {where}": collector(samples[f"{name}, {where}"], partial(function.batch, 10, gap_s=GAP_S))
            for (name, where), function in starts.items()
        }
        in_turns(batches, run.pick(40, 8))
    for case, times in samples.items():
        result.add(case, "cold start", "ms", times)
    for name in HANDLERS:
        host, image = (result.row(f"{name}, {where}", "cold start").p50 for where in ("host", "image"))
        result.aim(f"{name}: cold start in an image, times the host's", image / host, "<= 1.2")


def make_image(scratch: Path) -> Path:
    """A layout with Python, numpy and the handlers. Raises: NoPackages."""
    layers = [
        python_image.interpreter_layer(scratch / "interpreter.tar"),
        python_image.packages_layer(scratch / "numpy.tar", [NUMPY]),
        write_text_layer(
            scratch / "handlers.tar",
            {f"app/{module(name)}.py": text for name, text in HANDLERS.items()},
            mtime_s=MTIME_S,
        ),
    ]
    config = {"Entrypoint": [f"/{python_image.PYTHON}"], "Env": python_image.ENVIRONMENT, "WorkingDir": "/app"}
    write_layout(scratch / "layout", layers, config)
    return scratch / "layout"


def module(name: str) -> str:
    """Return the name of a handler's module: no package's name, as it would be imported in its place."""
    return f"{name}_handler"


def deploy(plain: Worker, imaged: Worker, scratch: Path, layout: Path) -> None:
    for name, text in HANDLERS.items():
        code = scratch / f"{name}-on-host"
        code.mkdir()
        (code / f"{module(name)}.py").write_text(text)
        _write_settings(code, handler=f"{module(name)}:handler")
        if name == "numpy":
            (code / "requirements.txt").write_text(f"{NUMPY}\n")
        plain.deploy(code, name)
        own = scratch / f"{name}-in-image"
        own.mkdir()
        _write_settings(own, handler=f"{module(name)}:handler", runtime="python")
        imaged.cli("deploy", str(own), "--name", name, "--image", f"oci:{layout}")


def _write_settings(directory: Path, **settings: Any) -> None:
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in {**SETTINGS, **settings}.items())
    (directory / "sockd.toml").write_text("".join(lines))


def learn_in_image(imaged: Worker) -> None:
    """Invoke until a Zygote of the image's Python holds packages, and has been compared. Raises: NeverLearned."""
    deadline = time.monotonic() + LEARN_DEADLINE_S
    with Client(imaged.host, imaged.port) as client:
        while time.monotonic() < deadline:
            for _ in range(5):
                client.invoke("numpy")
            if _holds(imaged.json("tree")["root"]) and not imaged.json("status")["verifying"]:
                return
    raise NeverLearned(f"no verified Zygote of the image holds packages after {LEARN_DEADLINE_S:.0f} s")


def _holds(node: dict[str, Any]) -> bool:
    in_image = node.get("interpreter", "").startswith("image:") and node["packages"]
    return bool(in_image) or any(_holds(child) for child in node.get("children", ()))
