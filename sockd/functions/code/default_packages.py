"""Packages that functions find without naming them, as boto3 on AWS: `packages.default`.

They are resolved once for the worker, by the first deploy that needs them, and kept in a file; they are added to a version's own
closure when its code or one of its packages mentions them. What a version has is fixed when it is deployed, so an import goes the
same way in each of its starts. A version's own packages win: of the defaults only those are added that agree with them.

Owns the file. A host that cannot reach the index deploys without them, and says so.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sockd.base.blocking import in_thread
from sockd.base.errors import PackagesFailed, ResolveFailed
from sockd.base.notes import Progress
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.packages.provided_names import may_require

FILE = "default-packages{}.json"
RETRY_S = 60.0
"""When the index has not answered, no other deploy asks it for them for so long."""
DEADLINE_S = 30.0
"""For resolving them: a deploy does not wait longer for what its function did not ask for."""
MAX_FILES = 2000
MAX_BYTES = 64 << 20
"""Most that is read of a function's code; more is taken to mention all."""
ALSO = {"boto3": (b"botocore",)}
"""Modules that a default package is used by, besides its own."""


class Lock(msgspec.Struct, frozen=True):
    """The file."""

    requirements: tuple[str, ...]
    """What was asked for; another list is resolved anew."""
    closure: Closure


class DefaultPackages:
    """The default packages of one worker."""

    def __init__(self, requirements: tuple[str, ...], packages: InstallCache) -> None:
        """Args: requirements: as lines of a requirements.txt."""
        self._requirements = requirements
        self._packages = packages
        self._parent = packages.parent
        self._locks: dict[str, Lock] = {}
        self._resolving = asyncio.Lock()
        self._failed_until = 0.0

    async def added(self, own: Closure, code: Path, progress: Progress, python: Interpreter = OWN_PYTHON) -> Closure:
        """The closure of a version with the default packages that it may import.

        Args: own: of what the function names, installed; code: its directory; python: the interpreter that runs it."""
        names = {distribution.name for distribution in own.distributions}
        wanted = [name for name in map(_name, self._requirements) if name not in names]
        installed = [self._packages.directory(distribution.key) for distribution in own.distributions]
        if not wanted or not await in_thread(are_mentioned, wanted, code, installed):
            return own
        try:
            return await self._merged(own, progress, python)
        except PackagesFailed as error:
            why = error.message.splitlines()[0] if error.message else type(error).__name__
            progress(f"{', '.join(wanted)} (packages.default) left out: {why}")
            return own

    async def _merged(self, own: Closure, progress: Progress, python: Interpreter) -> Closure:
        """Raises: PackagesFailed, also when they do not agree with the function's own."""
        defaults = await self._closure(progress, python)
        if not own.distributions:
            return defaults
        have = {distribution.name: distribution for distribution in own.distributions}
        merged = Closure.of({**{each.name: each for each in defaults.distributions}, **have}.values())
        if any(have.get(each.name, each) != each for each in defaults.distributions):
            # The versions differ somewhere. The resolver is asked whether all that would be there goes together.
            pins = "".join(f"{each.name}=={each.version}\n" for each in merged.distributions)
            await self._packages.resolve(pins, python=python)
        return merged

    async def _closure(self, progress: Progress, python: Interpreter) -> Closure:
        """What the defaults are resolved to, once for all functions that an interpreter runs. Raises: PackagesFailed."""
        async with self._resolving:
            lock = self._locks.get(python.tag) or await in_thread(self._read, python)
            if lock is None:
                if time.monotonic() < self._failed_until:
                    raise PackagesFailed("they could not be resolved a short time ago")
                progress(f"resolving {', '.join(self._requirements)} (packages.default)")
                lock = Lock(self._requirements, await self._resolve(python))
                await in_thread(self._write, lock, python)
            self._locks[python.tag] = lock
            return lock.closure

    async def _resolve(self, python: Interpreter) -> Closure:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._packages.resolve("".join(f"{each}\n" for each in self._requirements), python=python)
        except ResolveFailed:  # the index has answered: the next deploy may ask it again
            raise
        except (TimeoutError, PackagesFailed) as error:
            self._failed_until = time.monotonic() + RETRY_S
            raise PackagesFailed(str(error) or f"they were not resolved within {DEADLINE_S:g} s") from None

    def _file(self, python: Interpreter) -> Path:
        return self._parent / FILE.format(f"-{python.tag}" if python.tag else "")

    def _read(self, python: Interpreter) -> Lock | None:
        with suppress(OSError, msgspec.DecodeError):
            lock = msgspec.json.decode(self._file(python).read_bytes(), type=Lock)
            return lock if lock.requirements == self._requirements else None
        return None

    def _write(self, lock: Lock, python: Interpreter) -> None:
        file = self._file(python)
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(lock))
        os.replace(new, file)


def are_mentioned(names: Sequence[str], code: Path, installed: Sequence[Path]) -> bool:
    """POLICY: may a function import one of these packages? If its sources name one, or if one of its own packages requires one
    optionally. The code's own modules of these names win. Blocks.

    Args: names: normalised; installed: the directories of the function's own packages."""
    wanted = {name for name in names if not _brings(code, name.replace("-", "_"))}
    words = [word for name in wanted for word in (name.replace("-", "_").encode(), *ALSO.get(name, ()))]
    return bool(wanted) and (_is_in_sources(words, code) or any(wanted & may_require(each) for each in installed))


def _brings(code: Path, module: str) -> bool:
    return (code / module).exists() or (code / f"{module}.py").exists()


def _is_in_sources(words: Sequence[bytes], code: Path) -> bool:
    files = size = 0
    for root, directories, names in os.walk(code):
        directories[:] = [each for each in directories if each != "__pycache__" and not each.endswith(".dist-info")]
        for path in (os.path.join(root, name) for name in names if name.endswith((".py", ".pyc"))):
            files, size = files + 1, size + os.lstat(path).st_size
            if files > MAX_FILES or size > MAX_BYTES:
                return True
            with open(path, "rb") as file:
                text = file.read()
            if any(word in text for word in words):
                return True
    return False


def _name(requirement: str) -> str:
    """Normalised; empty for what is no requirement, which the resolver refuses with the reason."""
    try:
        return str(canonicalize_name(Requirement(requirement).name))
    except InvalidRequirement:
        return ""
