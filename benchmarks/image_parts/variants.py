"""Variants of one image, as its builds give them: packages of the index over a distribution's files over each other.

    A  base, Python packages (numpy, pandas, Django), a handler
    E  A with another handler                                       an edit
    R  A built again: everything above the base has other times     a rebuild
    B  A with Django's next patch release                           a patch bump
    G  A on an updated base: one package more, one with new files   a base update
    C  A with numpy's next major version
    D  numpy, scikit-learn and Flask instead
    F  Flask and requests instead

The base is this machine's own required packages (dpkg(1)), the Python packages come from the index by uv, without bytecode.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uv

from benchmarks.image_parts.oci_layout import files_below, is_file, write_layer, write_layout, write_text_layer

SITE_PACKAGES = "usr/local/lib/python3.12/site-packages"
BUILT_S = 1_750_000_000
"""When A was built."""
EXTRA = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "ca-certificates", "media-types")
ADDED, UPDATED = ("curl", "less", "openssh-client", "man-db"), "openssl"
"""What a base update adds (the first that is installed), and what it brings new files of."""
PACKAGES = {
    "A": ("numpy==1.26.4", "pandas==2.2.2", "Django==5.0.6"),
    "B": ("numpy==1.26.4", "pandas==2.2.2", "Django==5.0.7"),
    "C": ("numpy==2.0.2", "pandas==2.2.2", "Django==5.0.6"),
    "D": ("numpy==1.26.4", "scikit-learn==1.5.0", "Flask==3.0.3"),
    "F": ("Flask==3.0.3", "requests==2.32.3"),
}
HANDLER = "import json\n\n\ndef handler(event):\n    return {'status': 200, 'text': '%s'}\n"


@dataclass(frozen=True, slots=True)
class Variant:
    """One image."""

    name: str
    layers: tuple[Path, ...]
    layout: Path
    """An OCI layout."""

    @property
    def reference(self) -> str:
        return f"oci:{self.layout}"


class NoVariants(Exception):
    """This machine cannot make them; the text says why."""


def build(scratch: Path, names: str) -> list[Variant]:
    """Raises: NoVariants."""
    return [Variant(name, *_built(scratch, name)) for name in names]


def _built(scratch: Path, name: str) -> tuple[tuple[Path, ...], Path]:
    built_s = BUILT_S + 86_400 * (name == "R") + 172_800 * (name == "G")
    layers = (
        _base(scratch, is_updated=name == "G"),
        _packages(scratch, PACKAGES.get(name, PACKAGES["A"]), built_s),
        _handler(scratch, "edited" if name == "E" else "first", built_s),
    )
    layout = scratch / f"image-{name}"
    write_layout(layout, layers, {"Cmd": ["python3", "/app/handler.py"]})
    return layers, layout


def _handler(scratch: Path, text: str, built_s: int) -> Path:
    path = scratch / f"handler-{text}-{built_s}.tar"
    return path if path.exists() else write_text_layer(path, {"app/handler.py": HANDLER % text}, mtime_s=built_s)


def _packages(scratch: Path, requirements: tuple[str, ...], built_s: int) -> Path:
    """A layer with packages of the index."""
    named = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
    path, target = scratch / f"packages-{named}-{built_s}.tar", scratch / f"packages-{named}"
    if not target.exists():
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
        command += ["--python-version", "3.12", "--only-binary", ":all:", *requirements]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise NoVariants(f"uv did not install {' '.join(requirements)}: {run.stderr.strip()[-300:]}")
    if not path.exists():
        write_layer(path, files_below(target, SITE_PACKAGES), mtime_s=built_s)
    return path


def _base(scratch: Path, *, is_updated: bool) -> Path:
    """A layer with the files of this machine's required packages."""
    path = scratch / f"base-{is_updated}.tar"
    if path.exists():
        return path
    found = _files_of(_required())
    if is_updated:
        found |= _files_of(_first_installed(ADDED))
        found |= _new_files(scratch / "new", _files_of((UPDATED, "libssl3")))
    write_layer(path, sorted(found.items()))
    return path


def _required() -> tuple[str, ...]:
    try:
        run = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Priority} ${Package}\n"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoVariants(f"the base is made of this machine's Debian packages: {error}") from None
    pairs = (line.split() for line in run.stdout.splitlines())
    return (*sorted({package for priority, package in pairs if priority in ("required", "important")}), *EXTRA)


def _first_installed(packages: tuple[str, ...]) -> tuple[str, ...]:
    return next(((package,) for package in packages if _files_of((package,))), ())


def _files_of(packages: tuple[str, ...]) -> dict[str, Path]:
    """Files of Debian packages, by their names in an image; links of directories are resolved, as in a merged /usr."""
    run = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True)
    found = {}
    for line in run.stdout.splitlines():
        path = Path(line)
        if line.startswith("/") and is_file(path):
            whole = Path(os.path.realpath(path.parent)) / path.name
            found[str(whole).lstrip("/")] = whole
    return found


def _new_files(directory: Path, files: dict[str, Path]) -> dict[str, Path]:
    """A newer version of files: of the same kind, with other data and one page more."""
    directory.mkdir(exist_ok=True)
    found = {}
    for number, (name, path) in enumerate(_regular(files)):
        data = path.read_bytes() + bytes(4096)
        mask = hashlib.shake_128(name.encode()).digest(len(data))
        new = directory / str(number)
        new.write_bytes((int.from_bytes(data) ^ int.from_bytes(mask)).to_bytes(len(data)))
        found[name] = new
    return found


def _regular(files: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, path in files.items() if path.is_file() and not path.is_symlink())
