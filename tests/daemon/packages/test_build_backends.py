"""Builds from source with the build backends that packages use, each from the public registry, and with a C compiler."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from tests.daemon.running import DeployFailed, RunningDaemon
from tests.support.servers.package_index import PackageIndex

pytestmark = [pytest.mark.root, pytest.mark.families, pytest.mark.timeout(600)]

PROJECT = """
[project]
name = "{name}"
version = "1.0"
description = "made for a test"
[build-system]
requires = ["{requires}"]
build-backend = "{backend}"
"""
BACKENDS = {
    "by-setuptools": ("setuptools>=61", "setuptools.build_meta"),
    "by-hatchling": ("hatchling", "hatchling.build"),
    "by-flit": ("flit_core>=3.4", "flit_core.buildapi"),
    "by-poetry": ("poetry-core>=2", "poetry.core.masonry.api"),
    "by-pdm": ("pdm-backend", "pdm.backend"),
}
EXTENSION = r"""
#include <Python.h>
static PyObject *who(PyObject *self, PyObject *none) { return PyUnicode_FromString("by-c"); }
static PyMethodDef methods[] = {{"who", who, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "by_c", "", -1, methods};
PyMODINIT_FUNC PyInit_by_c(void) { return PyModule_Create(&module); }
"""
SETUP = """
from setuptools import Extension, setup
setup(name="by-c", version="1.0", ext_modules=[Extension("by_c", ["by_c.c"])])
"""


def add(index: PackageIndex, name: str, files: dict[str, str]) -> None:
    stem = f"{name.replace('-', '_')}-1.0"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    index.add((f"{stem}.tar.gz", packed.getvalue()))


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None, index: PackageIndex
) -> Iterator[RunningDaemon]:
    """With uv's own index behind one that has the projects of this module."""
    for name, (requires, backend) in BACKENDS.items():
        module = name.replace("-", "_")
        project = PROJECT.format(name=name, requires=requires, backend=backend)
        add(index, name, {"pyproject.toml": project, f"{module}/__init__.py": f"def who(): return {name!r}\n"})
    add(index, "by-c", {"setup.py": SETUP, "by_c.c": EXTENSION})
    config = f'[packages]\nextra_index_urls = ["{index.url}"]\n'
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("backends") / "state", config)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


@pytest.mark.parametrize("name", [*BACKENDS, "by-c"])
def test_a_backend_builds(worker: RunningDaemon, name: str) -> None:
    module = name.replace("-", "_")
    files = {"f.py": f"import {module}\ndef f(event): return {module}.who()\n", "requirements.txt": name}
    info = worker.deploy(name, files, build=True)
    assert info["packages"] == [f"{name}==1.0"] and worker.call(name) == name


@pytest.mark.parametrize(
    ("requirement", "expression", "expected"),
    [
        ("docopt==0.6.2", "docopt.docopt('usage: x <a>', ['1'])['<a>']", "1"),
        ("crcmod==1.7", "hex(crcmod.mkCrcFun(0x104c11db7)(b'1'))", None),
        ("netifaces==0.11.0", "'lo' in netifaces.interfaces()", True),
    ],
)
def test_a_package_of_the_registry_that_has_no_wheel_here(
    worker: RunningDaemon, requirement: str, expression: str, expected: object
) -> None:
    name = requirement.partition("=")[0]
    files = {"f.py": f"import {name}\ndef f(event): return {expression}\n", "requirements.txt": requirement}
    worker.deploy(name, files, build=True)
    answer = worker.call(name)
    assert answer == expected if expected is not None else int(answer, 16) > 0


def test_a_backend_that_is_not_there_is_named(worker: RunningDaemon, index: PackageIndex) -> None:
    project = PROJECT.format(name="by-none", requires="no-such-backend-of-sockd", backend="none")
    add(index, "by-none", {"pyproject.toml": project})
    with pytest.raises(DeployFailed, match="no-such-backend-of-sockd"):
        worker.deploy("none", {"f.py": "def f(event): pass\n", "requirements.txt": "by-none"}, build=True)
