"""Other Pythons of the host: which are installed, and the bases of their farms.

A version is looked for when a function first names it, by asking the interpreters themselves; what was found is remembered. For
each that is used, our own packages are copied and compiled by it: sandboxes cannot write bytecode. Owns these copies.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import BadFunctionConfig, SandboxFailed
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.interpreter import OLDEST, OWN_PYTHON, Interpreter
from sockd_zygote import rehearsal

SCHEME = "python"
VERSION = re.compile(r"3\.[0-9]{1,2}")
NEWEST_MINOR = 30
PLACES = (
    "{path}/python3.{minor}",
    "~/.pyenv/versions/3.{minor}.*/bin/python3.{minor}",
    "~/.local/share/uv/python/cpython-3.{minor}.*/bin/python3.{minor}",
    "/opt/python*/bin/python3.{minor}",
    "/usr/local/bin/python3.{minor}",
    "/usr/bin/python3.{minor}",
)
"""Where interpreters are: PATH, pyenv's, uv's, and usual directories."""
QUESTION = (
    "import json, os, sys, sysconfig\n"
    "print(json.dumps({'executable': os.path.realpath(getattr(sys, '_base_executable', sys.executable)),"
    "'version': sys.version_info[:3], 'cache_tag': sys.implementation.cache_tag, 'prefix': os.path.realpath(sys.base_prefix),"
    "'is_usual': sys.implementation.name == 'cpython' and not sysconfig.get_config_var('Py_GIL_DISABLED')"
    " and sys.version_info.releaselevel == 'final'}))\n"
)
ANSWER_S = 10.0
COMPILE_S = 120.0


class NoPython(BadFunctionConfig):
    """The function wants a Python that the worker does not have."""


class _Answer(msgspec.Struct):
    executable: str
    version: tuple[int, int, int]
    cache_tag: str
    prefix: str
    is_usual: bool
    """CPython with its lock, released."""


class HostPythons:
    """The other Pythons of one worker's host."""

    def __init__(
        self, packages: Path, copies: Path, configured: Sequence[str] = (), places: Sequence[str] = PLACES
    ) -> None:
        """Args: packages: the package store; copies: a directory for our packages and for mounts; configured: paths of
        interpreters that are asked first."""
        self._packages = packages
        self._copies = copies
        self._configured = tuple(configured)
        self._places = tuple(places)
        self._found: dict[str, Interpreter] = {}
        self._copying = asyncio.Lock()

    async def find(self, version: str) -> Interpreter:
        """The interpreter of a version such as "3.13"; the worker's own, if that is of this version.

        Raises: NoPython, which says what is installed."""
        if version == OWN_PYTHON.short:
            return OWN_PYTHON
        found = self._found.get(version) or await in_thread(self._look_for, version)
        if found is None:
            installed = ", ".join(await in_thread(self._installed))
            raise NoPython(f'python = "{version}": not installed on this worker; installed are {installed}')
        self._found[version] = found
        return found

    async def open(self, interpreter: str) -> tuple[Interpreter, bases.Base]:
        """The interpreter with this id, and a base for its farm, the caller's. Raises: SandboxFailed, OSError."""
        try:
            found = await self.find(interpreter.partition(":")[2])
        except NoPython as error:
            raise SandboxFailed(error.message) from error
        return found, await self.base_of(found, self._copies / found.short)

    async def base_of(self, interpreter: Interpreter, directory: Path) -> bases.Base:
        """A base with one of the host's interpreters and our packages, compiled by it; the caller's.

        Args: directory: for the copies of our packages and the mount. Raises: SandboxFailed, OSError."""
        async with self._copying:
            ours = await in_thread(prepared, interpreter, directory / "ours")
        return bases.Base.build(directory / "base", bases.plan(self._packages, interpreter.prefix, ours))

    def _look_for(self, version: str) -> Interpreter | None:
        """Blocks."""
        for path in self._candidates([int(version.partition(".")[2])]):
            found = ask(path)
            if found is not None and found.short == version:
                return found
        return None

    def _installed(self) -> list[str]:
        """Every version that a function may name. Blocks."""
        own = f"{OWN_PYTHON.short} (the worker's own)"
        minors = range(OLDEST[1], NEWEST_MINOR)
        found = {found.version[:2] for path in self._candidates(minors) if (found := ask(path)) is not None}
        others = sorted(found - {OWN_PYTHON.version[:2]})
        return [own, *(f"{major}.{minor}" for major, minor in others)]

    def _candidates(self, minors: Iterable[int]) -> Iterator[str]:
        """Executable files, each once."""
        seen = set()
        for path in (*self._configured, *self._usual(minors)):
            real = os.path.realpath(path)
            if real not in seen and os.access(real, os.X_OK):
                seen.add(real)
                yield path

    def _usual(self, minors: Iterable[int]) -> Iterator[str]:
        directories = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each.startswith("/")]
        for minor in minors:
            for place in self._places:
                for directory in directories if "{path}" in place else [""]:
                    pattern = os.path.expanduser(place.format(path=glob.escape(directory), minor=minor))
                    yield from sorted(glob.glob(pattern), key=_by_patch, reverse=True)


def ask(executable: str) -> Interpreter | None:
    """What an executable file says to be; None: it is not a CPython that can be a Zygote. Blocks."""
    try:
        done = subprocess.run(
            [executable, "-I", "-S", "-c", QUESTION], capture_output=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL
        )
        said = msgspec.json.decode(done.stdout, type=_Answer)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
        return None
    if done.returncode or not said.is_usual or said.version[:2] < OLDEST:
        return None
    short = f"{said.version[0]}.{said.version[1]}"
    return Interpreter(f"{SCHEME}:{short}", said.executable, said.version, said.cache_tag, said.prefix)


def prepared(interpreter: Interpreter, directory: Path) -> tuple[Path, Path]:
    """Copies of our packages with an interpreter's bytecode. Blocks. Raises: OSError, SandboxFailed."""
    zygote, storage = directory / "sockd_zygote", directory / "sockd_storage_lib"
    shutil.rmtree(directory, ignore_errors=True)  # perhaps of another version of ours
    for source, copy in zip(bases.our_packages(), (zygote, storage), strict=True):
        copy_package(source, copy)
    command = [
        interpreter.executable,
        "-I",
        "-S",
        "-m",
        "compileall",
        "-q",
        "-j1",
        "--invalidation-mode=unchecked-hash",
    ]
    for target, copy in ((bases.ZYGOTE, zygote), (bases.STORAGE, storage)):
        done = subprocess.run([*command, "-s", str(copy), "-p", f"/{target}", str(copy)], timeout=COMPILE_S)
        if done.returncode:
            raise SandboxFailed(f"Python {interpreter.words} cannot compile sockd's own packages")
    return zygote, storage


def copy_package(source: Path, copy: Path) -> None:
    """Its modules and C extension, without bytecode and C sources; of the Zygote's, the function that it rehearses with, too."""
    shutil.copytree(source.resolve(), copy, ignore=shutil.ignore_patterns("__pycache__", "native", "*.pyi"))
    if source == bases.our_packages()[0]:
        rehearsed = copy / Path(rehearsal.PREPARED).name
        rehearsed.mkdir()
        (rehearsed / f"{rehearsal.NAME}.py").write_text(rehearsal.SOURCE)


def _by_patch(path: str) -> list[int]:
    """Orders directories of releases."""
    return [int(number) for number in re.findall(r"\d+", path)]
