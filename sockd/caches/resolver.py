"""The resolver: it converts a requirements.txt to a closure, once per deploy.

`uv pip compile` selects the versions and lists every compatible wheel, as a PEP 751 lock file; this module selects the wheel as
pip does. Wheels only: building an sdist runs its author's code, so a package without a wheel is refused (uv's --no-build). Owns
no state."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from sockd.caches.blocking import in_thread
from sockd.caches.distribution import Closure, Distribution
from sockd.caches.indexes import without_credentials
from sockd.caches.requirements import LINE, Requirements, parse
from sockd.caches.uv import BASE_PYTHON, Uv
from sockd.plain.errors import PackagesFailed, ResolveFailed


class Wheel(msgspec.Struct, frozen=True):
    """One `packages.wheels` of a lock file (PEP 751), as far as it is used."""

    url: str = ""
    name: str = ""
    hashes: dict[str, str] = {}

    @property
    def filename(self) -> str:
        return self.name or unquote(urlsplit(self.url).path.rpartition("/")[2])


class LockedPackage(msgspec.Struct, frozen=True):
    """One `packages` of a lock file; other ways to get it (sdist, archive, vcs) are not read."""

    name: str
    version: str
    wheels: list[Wheel] = []


class Lock(msgspec.Struct, frozen=True, rename="kebab"):
    """A lock file."""

    lock_version: str
    packages: list[LockedPackage] = []


MAX_LOCK_BYTES = 32 << 20
"""Of uv's answer; a thousand packages with a hundred wheels each are half of it."""


class Resolver:
    """Resolves requirements against the operator's index, for the interpreter that sandboxes run."""

    def __init__(self, uv: Uv, tmp: Path, *, deadline_s: float, max_file_bytes: int) -> None:
        """
        Args:
            max_file_bytes: longest file that uv may write; some indexes make it fetch a wheel to read its metadata."""
        self._uv = uv
        self._tmp = tmp
        self._deadline_s = deadline_s
        self._max_file_bytes = max_file_bytes

    async def resolve(
        self, requirements: str, line_words: str = LINE, variables: Mapping[str, str] | None = None
    ) -> Closure:
        """The closure of the text of a requirements.txt; text that asks for nothing runs nothing.

        Args: line_words: as of `requirements.parse`; variables: as of `Uv.run`.
        Raises: ResolveFailed for requirements that cannot be met, in uv's words; PackagesFailed when the index does not
        answer, or not in time."""
        wanted = await in_thread(parse, requirements, line_words)
        if not wanted.lines:
            return Closure()
        try:
            async with asyncio.timeout(self._deadline_s):
                lock = await self._compile(wanted, variables)
        except TimeoutError:
            raise PackagesFailed(f"resolving the requirements took longer than {self._deadline_s:g} s") from None
        # The first choice asks the interpreter's own file which libc it is for.
        return await in_thread(choose, lock, wanted)

    async def _compile(self, wanted: Requirements, variables: Mapping[str, str] | None) -> dict[str, Any]:
        """The lock file, parsed."""
        directory = Path(await in_thread(tempfile.mkdtemp, prefix="resolve-", dir=self._tmp))
        try:
            await in_thread((directory / "requirements.txt").write_text, wanted.text)
            completed = await self._uv.run(
                *("pip", "compile", "requirements.txt", "--format=pylock.toml", "--output-file=pylock.toml"),
                *("--no-header", "--no-build", "--no-sources", f"--python={BASE_PYTHON}"),
                cwd=directory,
                max_file_bytes=self._max_file_bytes,
                variables=variables,
            )
            if completed.returncode:
                raise _failure(completed.words or f"uv ended with {completed.returncode}")
            return await in_thread(_read_lock, directory / "pylock.toml")
        finally:
            await in_thread(shutil.rmtree, directory)


def _read_lock(path: Path) -> dict[str, Any]:
    """uv's answer, in which names and URLs are the index's. Blocks. Raises: ResolveFailed."""
    if path.stat().st_size > MAX_LOCK_BYTES:
        raise ResolveFailed(f"the resolver's answer has {path.stat().st_size} bytes; the limit is {MAX_LOCK_BYTES}")
    try:
        return tomllib.loads(path.read_text())
    except (ValueError, OverflowError, RecursionError) as error:
        raise ResolveFailed(f"the resolver's answer is not usable: {str(error)[:300]}") from None


def choose(lock: dict[str, Any], wanted: Requirements) -> Closure:
    """One wheel for each package of a lock file.

    Raises: ResolveFailed when a package has none that this interpreter loads and the requirements' hashes allow."""
    try:
        packages = msgspec.convert(lock, Lock).packages
        return Closure.of(_distribution(package, wanted) for package in packages)
    except (msgspec.ValidationError, ValueError) as error:
        raise ResolveFailed(f"the resolver's answer is not usable: {error}") from None


def _distribution(package: LockedPackage, wanted: Requirements) -> Distribution:
    name = canonicalize_name(package.name)
    usable = [wheel for wheel in package.wheels if wheel.url and "sha256" in wheel.hashes]
    if not usable:
        raise ResolveFailed(f"{name} {package.version}: the index has no wheel with a URL and a sha256")
    allowed = [wheel for wheel in usable if wanted.allows(name, wheel.hashes["sha256"])]
    if not allowed:
        raise ResolveFailed(f"{name} {package.version}: no wheel for this worker has one of the hashes that were given")
    best = max(allowed, key=lambda wheel: preference(wheel.filename))
    if preference(best.filename) == NEVER:
        raise ResolveFailed(f"{name} {package.version}: no wheel for this worker's interpreter and platform")
    return Distribution(
        name=name, version=package.version, digest=best.hashes["sha256"], url=without_credentials(best.url)
    )


NEVER = (-(1 << 30), ())


def preference(filename: str) -> tuple[int, tuple[int, str] | tuple[()]]:
    """POLICY: which of several wheels? The one with the most specific tag (PEP 425), then the highest build: as pip.

    NEVER for a wheel that this interpreter does not load."""
    try:
        _, _, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return NEVER
    ranks = [rank for tag in tags if (rank := _tag_ranks().get(tag)) is not None]
    return (-min(ranks), build) if ranks else NEVER


@cache
def _tag_ranks() -> dict[Tag, int]:
    """Each tag that the running interpreter loads, most specific first. The base interpreter is the same build."""
    return {tag: rank for rank, tag in enumerate(sys_tags())}


def _failure(words: str) -> PackagesFailed:
    """What kind of failure uv's words tell: an index that could not be asked says nothing about the requirements."""
    unreachable = any(sign in words for sign in ("Failed to fetch", "Request failed", "error sending request"))
    return PackagesFailed(f"the package index did not answer: {words}") if unreachable else ResolveFailed(words)
