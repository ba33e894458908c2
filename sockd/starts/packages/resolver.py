"""The resolver: it converts a requirements.txt to a closure, once per deploy.

`uv pip compile` selects the versions and lists every compatible wheel, as a PEP 751 lock file; this module selects the wheel as
pip does. Building an sdist runs its author's code, so uv does not build here (--no-build): a package without a wheel is refused,
unless the deploy allows builds. Then uv resolves in a sandbox (`builder`), whose answer is untrusted: only names and versions of
its wheels are used, and resolved here again. Owns no state.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from sockd.base.blocking import in_thread
from sockd.base.errors import BuildNeeded, PackagesFailed, ResolveFailed
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.starts.packages.distribution import Closure, Distribution, Source
from sockd.starts.packages.indexes import without_credentials
from sockd.starts.packages.requirements import LINE, Requirements, parse
from sockd.starts.packages.uv import Uv
from sockd.starts.packages.wheel_tags import NEVER, build_environment, preference


class Wheel(msgspec.Struct, frozen=True):
    """One `packages.wheels` of a lock file (PEP 751), as far as it is used."""

    url: str = ""
    name: str = ""
    hashes: dict[str, str] = {}

    @property
    def filename(self) -> str:
        return self.name or unquote(urlsplit(self.url).path.rpartition("/")[2])


class Archive(msgspec.Struct, frozen=True):
    """One `packages.sdist` or `packages.archive`."""

    url: str = ""
    hashes: dict[str, str] = {}
    subdirectory: str = ""


class Repository(msgspec.Struct, frozen=True, rename="kebab"):
    """One `packages.vcs`."""

    type: str
    commit_id: str
    url: str = ""
    subdirectory: str = ""


class LockedPackage(msgspec.Struct, frozen=True):
    """One `packages` of a lock file."""

    name: str
    version: str = ""
    """Empty in what a sandbox says of a repository whose version is dynamic."""
    wheels: list[Wheel] = []
    sdist: Archive | None = None
    archive: Archive | None = None
    vcs: Repository | None = None


class Lock(msgspec.Struct, frozen=True, rename="kebab"):
    """A lock file."""

    lock_version: str
    packages: list[LockedPackage] = []


LockInSandbox = Callable[[str, Mapping[str, str] | None, Interpreter], Awaitable[str]]
"""(requirements, uv's variables, an interpreter) -> the text of the lock file that uv makes of them where it may build."""

MAX_LOCK_BYTES = 32 << 20
"""The most bytes of uv's answer; a thousand packages with a hundred wheels each are half of it."""


class Resolver:
    """Resolves requirements against the operator's index."""

    def __init__(self, uv: Uv, tmp: Path, *, deadline_s: float, max_file_bytes: int) -> None:
        """
        Args:
            max_file_bytes: longest file that uv may write; some indexes make it fetch a wheel to read its metadata."""
        self._uv = uv
        self._tmp = tmp
        self._deadline_s = deadline_s
        self._max_file_bytes = max_file_bytes

    async def resolve(
        self,
        requirements: str,
        line_words: str = LINE,
        variables: Mapping[str, str] | None = None,
        lock_in_sandbox: LockInSandbox | None = None,
        python: Interpreter = OWN_PYTHON,
        *,
        constraints: str = "",
        is_complete: bool = False,
    ) -> Closure:
        """The closure of the text of a requirements.txt; text that asks for nothing runs nothing.

        Args: line_words: as of `requirements.parse`; variables: as of `Uv.run`;
            lock_in_sandbox: for requirements that wheels alone do not meet; None: those are refused; python: the interpreter
            that is to import them; constraints: versions that hold for what is installed, as lines of a requirements.txt;
            is_complete: the requirements name all that is to be installed, and nothing is added.
        Raises: ResolveFailed for requirements that cannot be met, in uv's words; BuildNeeded; PackagesFailed when the index does
        not answer, or not in time."""
        may_build = lock_in_sandbox is not None
        wanted = await in_thread(parse, requirements, line_words, may_have_urls=may_build)
        if not wanted.lines:
            return Closure()
        limits = await in_thread(parse, constraints, "constraints line", may_have_urls=False)
        wanted = wanted.with_digests(limits)
        if not wanted.has_urls:
            try:
                options = ("--no-deps",) if is_complete else ()
                return await self._of_wheels(wanted.text, wanted, python, variables, *options, constraints=limits.text)
            except BuildNeeded:
                if not may_build:
                    raise
        if limits.lines:
            raise ResolveFailed(
                "constraints (-c) do not hold for builds from source; put exact versions into requirements.txt"
            )
        assert lock_in_sandbox is not None  # parse refuses URLs without it
        claimed = _parsed(await lock_in_sandbox(wanted.text, variables, python))
        pins, built = await in_thread(split, claimed, wanted, python)
        wheels = await self._of_wheels(pins, wanted, python, variables, "--no-deps") if pins else Closure()
        return Closure.of((*wheels.distributions, *built))

    async def _of_wheels(
        self,
        text: str,
        wanted: Requirements,
        python: Interpreter,
        variables: Mapping[str, str] | None,
        *options: str,
        constraints: str = "",
    ) -> Closure:
        try:
            async with asyncio.timeout(self._deadline_s):
                lock = await self._compile(text, constraints, variables, f"--python={python.executable}", *options)
        except TimeoutError:
            raise PackagesFailed(f"resolving the requirements took longer than {self._deadline_s:g} s") from None
        # The first choice asks the interpreter's own file which libc it is for.
        return await in_thread(choose, lock, wanted, python)

    async def _compile(
        self, text: str, constraints: str, variables: Mapping[str, str] | None, *options: str
    ) -> dict[str, Any]:
        """The lock file, parsed."""
        directory = Path(await in_thread(tempfile.mkdtemp, prefix="resolve-", dir=self._tmp))
        try:
            await in_thread((directory / "requirements.txt").write_text, text)
            if constraints:
                await in_thread((directory / "constraints.txt").write_text, constraints)
                options = ("--constraints=constraints.txt", *options)
            completed = await self._uv.run(
                *("pip", "compile", "requirements.txt", "--format=pylock.toml", "--output-file=pylock.toml"),
                *("--no-header", "--no-build", "--no-sources", *options),
                cwd=directory,
                max_file_bytes=self._max_file_bytes,
                variables=variables,
            )
            if completed.returncode:
                raise failure(completed.words or f"uv ended with {completed.returncode}")
            return await in_thread(_read_lock, directory / "pylock.toml")
        finally:
            await in_thread(shutil.rmtree, directory)


def _read_lock(path: Path) -> dict[str, Any]:
    """uv's answer, in which names and URLs are the index's. Blocks. Raises: ResolveFailed."""
    if path.stat().st_size > MAX_LOCK_BYTES:
        raise ResolveFailed(f"the resolver's answer has {path.stat().st_size} bytes; the limit is {MAX_LOCK_BYTES}")
    return _parsed(path.read_text())


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ResolveFailed(f"the resolver's answer is not usable: {str(error)[:300]}") from None


def choose(lock: dict[str, Any], wanted: Requirements, python: Interpreter = OWN_PYTHON) -> Closure:
    """One wheel for each package of a lock file.

    Raises: ResolveFailed when a package has none that this interpreter loads and the requirements' hashes allow."""
    try:
        packages = msgspec.convert(lock, Lock).packages
        return Closure.of(_distribution(package, wanted, python) for package in packages)
    except (msgspec.ValidationError, ValueError) as error:
        raise ResolveFailed(f"the resolver's answer is not usable: {error}") from None


def split(
    lock: dict[str, Any], wanted: Requirements, python: Interpreter = OWN_PYTHON
) -> tuple[str, list[Distribution]]:
    """What a sandbox has resolved: the wheels as requirements with exact versions, and what is to be built.

    Raises: ResolveFailed."""
    try:
        packages = msgspec.convert(lock, Lock).packages
        built = [_built(package, wanted, python) for package in packages if not _has_wheel(package, wanted, python)]
        # Through Distribution: a name or version that is none must not become a line.
        pins = [
            Distribution(name=canonicalize_name(each.name), version=each.version, digest="0" * 64, url="")
            for each in packages
            if _has_wheel(each, wanted, python)
        ]
    except (msgspec.ValidationError, ValueError) as error:
        raise ResolveFailed(f"the resolver's answer is not usable: {error}") from None
    return "".join(f"{each.name}=={each.version}\n" for each in pins), built


def _has_wheel(package: LockedPackage, wanted: Requirements, python: Interpreter) -> bool:
    name = canonicalize_name(package.name)
    return any(
        wanted.allows(name, wheel.hashes.get("sha256", "")) and preference(wheel.filename, python) != NEVER
        for wheel in package.wheels
    )


def _built(package: LockedPackage, wanted: Requirements, python: Interpreter) -> Distribution:
    """Raises: ResolveFailed; ValueError."""
    name = canonicalize_name(package.name)
    if package.vcs is not None:
        if package.vcs.type != "git":
            raise ResolveFailed(f"{name}: of version control systems, only git is supported")
        url = without_credentials(package.vcs.url)
        source = Source(url=url, commit=package.vcs.commit_id, subdirectory=package.vcs.subdirectory)
    else:
        archive = package.archive or package.sdist
        if archive is None:
            raise ResolveFailed(f"{name} {package.version}: no wheel for this worker, and no source")
        digest = archive.hashes.get("sha256", "")
        if not wanted.allows(name, digest):
            raise ResolveFailed(f"{name} {package.version}: its source has none of the hashes that were given")
        source = Source(url=without_credentials(archive.url), digest=digest, subdirectory=archive.subdirectory)
    digest = source.digest_with(build_environment(python))
    identity = {"name": name, "version": package.version, "digest": digest, "python": python.tag}
    return Distribution(**identity, url=source.url, source=source)


def _distribution(package: LockedPackage, wanted: Requirements, python: Interpreter) -> Distribution:
    name = canonicalize_name(package.name)
    usable = [wheel for wheel in package.wheels if wheel.url and "sha256" in wheel.hashes]
    if not usable:
        raise ResolveFailed(f"{name} {package.version}: the index has no wheel with a URL and a sha256")
    allowed = [wheel for wheel in usable if wanted.allows(name, wheel.hashes["sha256"])]
    if not allowed:
        raise ResolveFailed(f"{name} {package.version}: no wheel for this worker has one of the hashes that were given")
    best = max(allowed, key=lambda wheel: preference(wheel.filename, python))
    if preference(best.filename, python) == NEVER:
        raise ResolveFailed(f"{name} {package.version}: no wheel for Python {python.short} on this worker's platform")
    digest, url = best.hashes["sha256"], without_credentials(best.url)
    return Distribution(name=name, version=package.version, digest=digest, url=url, python=python.tag)


def failure(words: str) -> PackagesFailed:
    """The error for a message of uv: an index that did not answer says nothing about the requirements."""
    words = words.removeprefix("error: ")
    if "building from source is disabled" in words:
        return BuildNeeded(words)
    unreachable = any(sign in words for sign in ("Failed to fetch", "Request failed", "error sending request"))
    return PackagesFailed(f"the package index did not answer: {words}") if unreachable else ResolveFailed(words)
