"""OCI layouts of images that tests make: layers of a few files, and an image with an interpreter, by Python alone.

The interpreter is the host's, copied to a prefix that the host does not have, with the shared objects that it needs: so nothing
that a function finds in such an image can be the host's own file."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.images import oci_images

MTIME_S = 1_600_000_000
LEFT_OUT = (
    *(
        "test",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "distutils",
        "site-packages",
        "dist-packages",
    ),
    *(
        "pydoc_data",
        "unittest",
        "curses",
        "dbm",
        "multiprocessing",
        "asyncio",
        "xml",
        "xmlrpc",
        "venv",
        "msilib",
        "sqlite3",
    ),
    *("ctypes", "zoneinfo", "tomllib", "wsgiref", "concurrent", "logging"),
)
"""Directories of the standard library."""
LEFT_OUT_MODULES = (
    "_test",
    "_tkinter",
    "_codecs_",
    "_ctypes",
    "_sqlite",
    "_curses",
    "_decimal",
    "_dbm",
    "_gdbm",
    "readline",
    "nis",
)
"""Extension modules, by how their names begin."""
PYTHON = "/opt/python/bin/python3"
ASK = """api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
def ask(method, path, body=None):
    api.request(method, "/2018-06-01/runtime/" + path, body)
    answer = api.getresponse()
    return answer.headers, answer.read()
"""
"""The source of a program that speaks to the Runtime API; it imports http.client and os."""


@dataclass
class Files:
    """A layer's files by path, and what is no plain file."""

    plain: Mapping[str, bytes | str] = field(default_factory=dict)
    executable: Mapping[str, bytes | str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()
    closed: Sequence[str] = ()
    """Directories that only root may enter."""
    mtimes_s: Mapping[str, int] = field(default_factory=dict)
    """Modification times of files; of all others MTIME_S."""

    def tar(self) -> bytes:
        """As a layer, uncompressed."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in self.directories:
                _add(archive, path, tarfile.DIRTYPE, 0o755)
            for path in self.closed:
                _add(archive, path, tarfile.DIRTYPE, 0o700)
            for files, mode in ((self.plain, 0o644), (self.executable, 0o755)):
                for path, data in files.items():
                    content = data.encode() if isinstance(data, str) else data
                    _add(archive, path, tarfile.REGTYPE, mode, content, mtime_s=self.mtimes_s.get(path, MTIME_S))
            for path, target in self.links.items():
                _add(archive, path, tarfile.SYMTYPE, 0o777, target=target)
        return buffer.getvalue()


def _add(
    archive: tarfile.TarFile,
    path: str,
    kind: bytes,
    mode: int,
    data: bytes = b"",
    target: str = "",
    mtime_s: int = MTIME_S,
) -> None:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, len(data), target, mtime_s
    archive.addfile(info, io.BytesIO(data))


def write_layout(
    path: Path, layers: Sequence[Files | bytes], config: Mapping[str, Any] | None = None, *, compress: bool = True
) -> str:
    """Write a layout with one image; its digest.

    Args: layers: the lowest first, tar archives or their files; config: as in an image's configuration, such as `Entrypoint`."""
    blobs = oci_images.Blobs()
    manifest = made(blobs, layers, config, compress=compress)
    blobs.write_layout(path, {"latest": manifest})
    return oci_images.digest(manifest)


def made(
    blobs: oci_images.Blobs,
    layers: Sequence[Files | bytes],
    config: Mapping[str, Any] | None = None,
    *,
    compress: bool = True,
) -> bytes:
    """The manifest of an image, whose blobs are kept."""
    archives = [layer if isinstance(layer, bytes) else layer.tar() for layer in layers]
    return blobs.image(archives, compress=compress, **(config or {}))


def library_of_python() -> Path:
    """The standard library of the host's interpreter."""
    return Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))


def packages_folder() -> str:
    """The name of the folder in PYTHON's library that packages are installed to: Debian's interpreters have their own."""
    return "dist-packages" if "dist-packages" in (library_of_python() / "site.py").read_text() else "site-packages"


def python_files(imports: Sequence[str] = ()) -> Files:
    """The layer of PYTHON: an interpreter with its standard library, below /opt/python, and the shared objects that they need.

    Args: imports: the modules that the image's programs import, so that others are left out; none: all stay."""
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    library = library_of_python()
    imported = imported_files(executable, imports) if imports else None
    plain: dict[str, bytes | str] = {}
    mtimes_s = {}
    needed = [executable]
    for directory, names, files in os.walk(library):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        for name in files:
            file = Path(directory) / name
            if (
                file.is_file()
                and (imported is None or source_of(file) in imported or file.parent.name == "encodings")
                and not name.startswith(LEFT_OUT_MODULES)
                and not name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc"))
            ):
                path = f"opt/python/lib/{library.name}/{file.relative_to(library)}"
                plain[path], mtimes_s[path] = (
                    file.read_bytes(),
                    int(file.stat().st_mtime),
                )  # bytecode names its source's
                if ".so" in name:
                    needed.append(str(file))
    executables: dict[str, bytes | str] = {PYTHON.lstrip("/"): Path(executable).read_bytes()}
    executables |= {each.lstrip("/"): stripped(each) for each in shared_objects(needed)}
    return Files(plain, executables, mtimes_s=mtimes_s)


def imported_files(executable: str, modules: Sequence[str]) -> set[Path]:
    """The files of modules, and of all that they import."""
    program = (
        f"import {', '.join(modules)}, encodings.idna, os, sys\n"
        "for name, each in list(sys.modules.items()):\n"
        "    print(os.path.join(os.path.dirname(os.__file__), *name.split('.')) + '.py')\n"
        "    print(getattr(each, '__file__', None) or '')"
    )
    found = subprocess.run([executable, "-c", program], capture_output=True, text=True, check=True).stdout
    # By its name, too, as a module may have put another in its place: since 3.13 collections.abc.
    return {Path(line) for line in found.splitlines() if line}


def source_of(file: Path) -> Path:
    """Return the source of a file of bytecode; for another file, itself."""
    return file.parent.parent / f"{file.name.partition('.')[0]}.py" if file.parent.name == "__pycache__" else file


def stripped(path: str) -> bytes:
    """A file without debug information, where there is a tool for it: some builds of Python have 20 MB of that."""
    if shutil.which("strip") is None:
        return Path(path).read_bytes()
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "--strip-debug", "-o", copy.name, path], check=True)
        return Path(copy.name).read_bytes()


def shared_objects(files: Sequence[str]) -> set[str]:
    """The paths of the shared objects that files need, the dynamic loader's among them."""
    found = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    words = (line.split("(")[0].split("=>")[-1].strip() for line in found.splitlines())
    return {word for word in words if word.startswith("/") and not word.endswith(":")}
