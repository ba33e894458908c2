"""An image with this machine's interpreter: made without Docker, of layers by Python alone.

The interpreter and its standard library are below /opt/python, so that nothing that the image finds can be the host's own file.
The program of the image speaks AWS's Runtime API.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

import uv

from benchmarks.image_parts.oci_layout import files_below, write_layer, write_layout, write_text_layer

PYTHON = "opt/python/bin/python3"
MTIME_S = 1_750_000_000
SITE_PACKAGES = f"opt/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
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
ENVIRONMENT = ["PATH=/opt/python/bin"]
PROGRAM = f"""#!/{PYTHON}
import http.client, json, os, sys
{{imports}}
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    response = api.getresponse()
    event = json.load(response)
    this = response.headers["Lambda-Runtime-Aws-Request-Id"]
    api.request("POST", f"/2018-06-01/runtime/invocation/{{{{this}}}}/response", json.dumps({{answer}}))
    api.getresponse().read()
"""
"""`imports`: statements; `answer`: an expression of `event`."""


class NoPackages(Exception):
    """They were not installed; the text says why."""


def program(imports: str = "", answer: str = "{}") -> str:
    """The text of a program."""
    return PROGRAM.format(imports=imports, answer=answer)


def write_image(
    directory: Path, layers: Sequence[Path], name: str, text: str, environment: Sequence[str] = ENVIRONMENT
) -> Path:
    """An OCI layout of layers and of a last one with the program, at /NAME; that layer. Args: directory: new."""
    own = write_text_layer(directory.with_suffix(".tar"), {name: text}, mtime_s=MTIME_S, mode=0o755)
    config = {"Entrypoint": [f"/{name}"], "Env": list(environment), "WorkingDir": "/tmp"}
    write_layout(directory, [*layers, own], config)
    return own


def interpreter_layer(path: Path) -> Path:
    """The host's interpreter at another prefix, its standard library, and their shared objects."""
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    extensions = [str(file) for file in library.glob("lib-dynload/*.so") if "_tkinter" not in file.name]
    with tarfile.open(path, "w", dereference=True) as layer:
        layer.add(executable, PYTHON, filter=_of_root)
        for each in sorted(shared_objects([executable, *extensions])):
            layer.add(each, each.lstrip("/"), filter=_of_root)
        layer.add(library, f"opt/python/lib/{library.name}", filter=_wanted)
    return path


def packages_layer(path: Path, requirements: Sequence[str]) -> Path:
    """Packages of the index, by uv, with bytecode as `pip install` makes it. Raises: NoPackages."""
    target = path.with_suffix("")
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--compile-bytecode", "--only-binary", ":all:"]
    command += ["--python", sys.executable, "--target", str(target), *requirements]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise NoPackages(f"uv did not install {' '.join(requirements)}: {run.stderr.strip()[-300:]}")
    needed = shared_objects([str(file) for file in target.rglob("*.so")])
    libraries = [
        (each.lstrip("/"), Path(each).resolve()) for each in sorted(needed) if not each.startswith(str(target))
    ]
    return write_layer(path, [*files_below(target, SITE_PACKAGES), *libraries])


def shared_objects(files: Sequence[str]) -> set[str]:
    """The paths of what they are linked to, the dynamic loader's among them."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    words = (line.split("(")[0].split("=>")[-1].strip() for line in said.splitlines())
    return {word for word in words if word.startswith("/") and not word.endswith(":")}


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o444
    return member


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A member of the standard library; None: the image does without."""
    names = member.name.split("/")
    if LEFT_OUT.intersection(names) or names[-1].startswith(("config-", "_tkinter")) or ".opt-" in names[-1]:
        return None
    return _of_root(member)
