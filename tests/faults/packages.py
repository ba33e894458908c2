"""Packages for a worker's Zygotes: each slow enough to import that a Zygote is worth it, some of them hostile."""

from __future__ import annotations

from typing import Any

from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
IN_ZYGOTE = "import os\nif os.getpid() != 1:\n    "
"""A handler is pid 1 of its own namespace; a Zygote is not."""

Wheel = tuple[str, bytes]


def package(name: str, code: str = "", **more: str) -> Wheel:
    """A wheel with one slow module of that name. Args: more: further modules, name -> code."""
    files: dict[str, str | bytes] = {f"{name.replace('-', '_')}.py": SLOW + code}
    return wheel(name, "1.0", {**files, **{f"{module}.py": text for module, text in more.items()}})


def deploy(worker: PrivateWorker, name: str, requirement: str, code: str, *wheels: Wheel, **settings: object) -> None:
    """A function that asks for one package, which the index has from now on."""
    worker.deploy(name, code, requirements=[requirement], wheels=wheels, **settings)


def grow_zygote(worker: PrivateWorker, requirement: str) -> None:
    """Have a Zygote of a package: a function imports it, and the worker learns from that."""
    name = f"grows-{requirement}"
    deploy(worker, name, requirement, f"import {requirement.replace('-', '_')}\ndef f(event): return 1")
    assert worker.call(name) == 1
    worker.daemon.when(lambda: worker.daemon.node(f"{requirement}==1.0"))


class Refusals:
    """Every refusal of a package that was seen, by name==version: one by a deadline ends after seconds."""

    def __init__(self, worker: PrivateWorker) -> None:
        self._worker = worker
        self.rows: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, dict[str, Any]]:
        """All until now."""
        self.rows.update({entry["package"]: entry for entry in self._worker.json("/tree")["refused"]})
        return self.rows


def refusals(worker: PrivateWorker) -> dict[str, str]:
    """Why which packages are in no Zygote now."""
    return {package: row["reason"] for package, row in Refusals(worker).look().items()}
