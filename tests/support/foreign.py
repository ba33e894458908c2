"""Farms of interpreters that are not the worker's own: the one that runs the tests, as if it were foreign, or others of the host
where they are installed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.host_pythons import HostPythons, NoPython, ask
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.isolation.sandbox.foreign_farms import ForeignFarms, NoInterpreter
from tests.support.harness import BASE_UID, MB, ROOT_UIDS, Harness

SAME = "test:same"
"""Id of the interpreter that runs the tests."""
_numbers = itertools.count()


class Interpreters:
    """Interpreters with ids of the scheme `test`."""

    def __init__(self, harness: Harness) -> None:
        self._pythons = HostPythons(harness.packages, harness.directory / f"pythons-{next(_numbers)}")
        self.directory = harness.directory / f"interpreter-{next(_numbers)}"
        self.executable = ""
        """Instead of the interpreter's own, if it is not empty."""

    async def open(self, interpreter: str) -> tuple[Interpreter, Base]:
        if interpreter == SAME:
            found = replace(OWN_PYTHON, id=SAME)
        else:
            try:
                found = replace(await self._pythons.find(interpreter.partition(":")[2]), id=interpreter)
            except NoPython as error:
                raise NoInterpreter(error.message) from error
        base = await self._pythons.base_of(found, self.directory / interpreter.replace(":", "-"))
        return replace(found, executable=self.executable or found.executable), base


class Foreign:
    """The farms of one test."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.interpreters = Interpreters(harness)
        first = BASE_UID + 6 * ROOT_UIDS
        parts = harness.parts
        self.uids = UidBlock.of_host(first, ROOT_UIDS)
        self.farms = ForeignFarms(parts, self.uids, harness.limits())
        self.farms.add("test", self.interpreters)
        self.ended: list[Zygote] = []

    def root(self, interpreter: str = SAME, *, is_walled: bool = False) -> Zygote:
        """A root Zygote; the caller closes it."""
        wall = Wall("none", self.harness.networks, self.harness.namespaces) if is_walled else None
        making = self.farms.exec_root(interpreter, wall, self.ended.append, limit_bytes=512 * MB)
        return self.harness.run(making)

    def close(self, zygote: Zygote) -> None:
        self.harness.call(zygote.close)


@contextlib.contextmanager
def foreign_farms(harness: Harness) -> Iterator[Foreign]:
    """Until the end of a test."""
    farms = Foreign(harness)
    try:
        yield farms
    finally:
        harness.run(farms.farms.aclose())


def installed(version: str) -> Interpreter:
    """Another Python of the host; skips the test without it."""
    for path in HostPythons(Path("/"), Path("/"))._candidates([int(version.partition(".")[2])]):
        found = ask(path)
        if found is not None and found.short == version:
            return found
    pytest.skip(f"Python {version} is not installed here")
