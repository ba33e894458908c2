"""The demo's function in a container image: made here without Docker, deployed, and started with and without a startup profile.

The image has an interpreter and its standard library below /opt/python, and a program that speaks AWS's Runtime API. It is an OCI
layout, which `sockd deploy --image oci:DIRECTORY` takes as it takes those that docker, buildah or umoci make.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.table import number, print_table
from benchmarks.worker import Worker
from demo.checks import WrongAnswer

NAME = "greeter"
PYTHON = "opt/python/bin/python3"
LEFT_OUT = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "pydoc_data",
}
PROGRAM = f"""#!/{PYTHON}
import http.client, json, os, sys
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    response = api.getresponse()
    event = json.load(response)
    answer = {{"greeting": f"{{os.environ['GREETING']}}, {{event['name']}}!", "python": sys.executable}}
    this = response.headers["Lambda-Runtime-Aws-Request-Id"]
    api.request("POST", f"/2018-06-01/runtime/invocation/{{this}}/response", json.dumps(answer))
    api.getresponse().read()
"""
EXPECTED = {"greeting": "Hello, world!", "python": f"/{PYTHON}"}


def start_image(house: Worker, scratch: Path) -> str:
    """Make the image, deploy its function, and start it for the first time; how long that took, in ms. Raises: WrongAnswer;
    WorkerFailed."""
    layout = scratch / "image"
    write_layout(layout)
    house.cli("deploy", NAME, "--image", f"oci:{layout}", "--timeout", "20", "--memory", "256")
    return cold(house)


def show_image(house: Worker, first: str) -> None:
    """Start it once more, with what the worker has learned of its first start. Raises: WrongAnswer; WorkerFailed."""
    image = next(row for row in house.json("images", "ls") if NAME in row["functions"])
    profile = house.state_dir / "images" / image["digest"].removeprefix("sha256:") / "profile"
    house.cli("rm", NAME)  # nothing runs in the image any more, so it is unmounted
    house.cli("deploy", NAME, "--image", image["digest"], "--timeout", "20", "--memory", "256")
    later = "with a startup profile" if profile.exists() else "again"
    rows = [("the first, without a startup profile", first), (f"mounted anew, {later}", cold(house))]
    print_table(f"cold starts in a container image of {image['size_bytes'] >> 20} MB", ("start", "ms"), rows)


def cold(house: Worker) -> str:
    """A first request: its time. Raises: WrongAnswer."""
    with Client(house.host, house.port) as client:
        answer = client.invoke(NAME, b'{"name": "world"}')
    if not answer.cold or json.loads(answer.body) != EXPECTED:
        raise WrongAnswer(f"the image's function answered {answer.body!r}, cold: {answer.cold}")
    return number(answer.ms)


def write_layout(path: Path) -> None:
    """An OCI layout with one image of one layer."""
    layer = archive()
    compressed = gzip.compress(layer, 1, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/greeter"], "Env": ["PATH=/opt/python/bin", "GREETING=Hello"], "WorkingDir": "/tmp"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(path, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(path, compressed, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    described = blob(path, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def blob(path: Path, data: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    (path / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def archive() -> bytes:
    """The layer: the host's interpreter at another prefix, its shared objects, and the program."""
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as layer:
        layer.add(executable, PYTHON)
        extensions = [str(file) for file in library.glob("lib-dynload/*.so") if "_tkinter" not in file.name]
        for each in sorted(shared_objects([executable, *extensions])):
            layer.add(each, each.lstrip("/"))
        layer.add(library, f"opt/python/lib/{library.name}", filter=wanted)
        program = tarfile.TarInfo("greeter")
        program.size, program.mode = len(PROGRAM), 0o755
        layer.addfile(program, io.BytesIO(PROGRAM.encode()))
    return buffer.getvalue()


def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A member of the standard library, owned by root; None: the image does without."""
    names = member.name.split("/")
    if LEFT_OUT.intersection(names) or names[-1].startswith(("config-", "_tkinter")) or ".opt-" in names[-1]:
        return None
    member.uid = member.gid = 0
    member.mode |= 0o444
    return member


def shared_objects(files: list[str]) -> set[str]:
    """The paths of what they are linked to, the dynamic loader's among them."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    words = (line.split("(")[0].split("=>")[-1].strip() for line in said.splitlines())
    return {word for word in words if word.startswith("/") and not word.endswith(":")}
