"""The installation of one distribution: uv unpacks its wheel, its files are checked and byte-compiled, and the store gets them.

Owns the directory that it works in, and the slots of installs at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.config import PackageConfig
from sockd.base.errors import BadRequest, InstallFailed
from sockd.isolation.roots.interpreter import Interpreter, cache_tag_of
from sockd.starts.packages import package_tree
from sockd.starts.packages.distribution import SANDBOX_STORE, Distribution
from sockd.starts.packages.indexes import Indexes
from sockd.starts.packages.package_store import Package, PackageStore, delete
from sockd.starts.packages.provided_names import provided_by
from sockd.starts.packages.uv import Completed, Uv

_log = logging.getLogger(__name__)


class Builds(Protocol):
    """Builds from source (`builder`)."""

    async def lock(self, requirements: str, variables: Mapping[str, str], python: Interpreter) -> str: ...

    async def wheel(
        self, distribution: Distribution, directory: Path, variables: Mapping[str, str], python: Interpreter
    ) -> Path: ...


class Wheels(Protocol):
    """Wheels that other workers have built, and may have from this one."""

    async def fetch(self, distribution: Distribution, directory: Path) -> Path | None: ...

    async def keep(self, distribution: Distribution, wheel: Path) -> None: ...


class Installer:
    """The installs of one worker; any number of callers at once, each for another distribution."""

    def __init__(
        self,
        config: PackageConfig,
        store: PackageStore,
        uv: Uv,
        indexes: Indexes,
        interpreter: Callable[[str | None], Awaitable[Interpreter]],
        builder: Callable[[], Builds],
    ) -> None:
        """Args: interpreter: as `InstallCache.interpreter`; builder: gives what builds from source. Raises: BuildFailed."""
        self._config = config
        self._max_bytes = config.max_package_mb << 20
        self._store = store
        self._uv = uv
        self._indexes = indexes
        self._interpreter = interpreter
        self._builder = builder
        self._slots = asyncio.Semaphore(config.parallel_installs)
        self._wheels: Wheels | None = None

    def share_wheels_with(self, wheels: Wheels) -> None:
        """Share wheels that are built, from now on."""
        self._wheels = wheels

    async def install(self, distribution: Distribution) -> None:
        """Install one distribution, which is not being removed. Raises: InstallFailed, BuildFailed."""
        directory = Path(await in_thread(tempfile.mkdtemp, prefix="install-", dir=self._store.tmp))
        try:
            wheel = await self._built(distribution, directory) if distribution.source else None
            await self._install_in(directory, distribution, wheel)
        finally:
            await in_thread(delete, directory)

    async def _built(self, distribution: Distribution, directory: Path) -> Path:
        """The wheel of a distribution that is built. It has a deadline of its own, and waits for other builds alone."""
        wheels = self._wheels
        try:
            if wheels is not None and (wheel := await wheels.fetch(distribution, directory)) is not None:
                return wheel
            variables = self._uv.public_variables(self._indexes.all_variables())
            wheel = await self._builder().wheel(distribution, directory, variables, await self._python(distribution))
            if wheels is not None:
                await wheels.keep(distribution, wheel)
            return wheel
        except OSError as error:
            raise _failed_by(distribution, error) from error

    async def _install_in(self, directory: Path, distribution: Distribution, wheel: Path | None) -> None:
        async with self._slots:
            try:
                async with asyncio.timeout(self._config.install_deadline_s):
                    await self._unpack_and_publish(distribution, directory, wheel)
            except TimeoutError:
                raise _failed(distribution, f"it took longer than {self._config.install_deadline_s:g} s") from None
            except package_tree.BadTree as error:
                raise _failed(distribution, str(error)) from None
            except OSError as error:
                raise _failed_by(distribution, error) from error

    async def _python(self, distribution: Distribution) -> Interpreter:
        """The interpreter that a distribution is for. Raises: InstallFailed."""
        try:
            return await self._interpreter(distribution.python)
        except BadRequest as error:
            raise _failed(distribution, error.message) from None

    async def _unpack_and_publish(self, distribution: Distribution, directory: Path, wheel: Path | None) -> None:
        tree, python = directory / "tree", await self._python(distribution)
        await self._unpack(distribution, directory, wheel, python)
        await in_thread(package_tree.check, tree, max_bytes=self._max_bytes)
        await self._compile(distribution, directory, python)
        package = await in_thread(self._sealed, distribution, tree)
        await in_thread(self._store.publish, tree, package)

    async def _unpack(
        self, distribution: Distribution, directory: Path, wheel: Path | None, python: Interpreter
    ) -> None:
        """Has uv unpack a wheel to `tree`; one that was not built it fetches and compares the hash of, exactly this one."""
        variables = self._indexes.all_variables()
        if wheel is None:
            wanted = ["--requirements=pylock.toml", "--preview-features=pylock"]
            await in_thread((directory / "pylock.toml").write_text, lock_file(distribution))
        else:
            wanted = [f"./{wheel.name}"]
            variables["UV_CACHE_DIR"] = str(directory / "uv-cache")  # foreign: not among what is shared
        completed = await self._uv.run(
            *("pip", "install", *wanted, "--target=tree"),
            *("--no-deps", "--no-build", "--link-mode=hardlink", f"--python={python.executable}"),
            cwd=directory,
            max_file_bytes=self._max_bytes,
            variables=variables,
        )
        self._check(completed, distribution)
        # uv's lock on the target is world-writable and of no use once uv has ended.
        await in_thread((directory / "tree" / ".lock").unlink, missing_ok=True)

    async def _compile(self, distribution: Distribution, directory: Path, python: Interpreter) -> None:
        """Writes the bytecode that a sandbox cannot write: without it pandas imports in 880 ms instead of 175.

        The bytecode is valid whatever the source's time (PEP 552, unchecked hash), and its tracebacks name the
        sandbox's paths. One worker process: compileall's pool would outlive its killed parent."""
        completed = await self._uv.run_python(
            python.executable,
            *("-m", "compileall", "-qq", "-f", "-j1", "--invalidation-mode=unchecked-hash"),
            *("-s", "tree", "-p", f"{SANDBOX_STORE}/{distribution.key}", "tree"),
            cwd=directory,
            max_file_bytes=self._max_bytes,
        )
        # 1 says that a file does not compile: templates and tests for other Pythons do that, and no function imports them.
        if completed.returncode != 1:
            self._check(completed, distribution)

    def _sealed(self, distribution: Distribution, tree: Path) -> Package:
        size_bytes = package_tree.seal(tree)
        contents = package_tree.describe(tree)
        return Package(
            key=distribution.key,
            name=distribution.name,
            version=distribution.version,
            digest=distribution.digest,
            python=cache_tag_of(distribution.python),
            modules=contents.modules,
            pth_files=contents.pth_files,
            has_bin=contents.has_bin,
            provided=provided_by(tree),
            size_bytes=size_bytes,
            installed_at=time.time(),
        )

    def _check(self, completed: Completed, distribution: Distribution) -> None:
        if completed.killed_by_file_limit:
            raise _failed(distribution, f"a file is over {self._config.max_package_mb} MB (packages.max_package_mb)")
        if completed.returncode:
            raise _failed(distribution, completed.words or f"the installer ended with {completed.returncode}")


def lock_file(distribution: Distribution) -> str:
    """A lock file (PEP 751) of this one wheel. uv asks no index then, and knows the hash to expect."""

    def text(value: str) -> str:
        return msgspec.json.encode(value).decode()  # a JSON string is a TOML basic string (toml.io, v1.0)

    return (
        'lock-version = "1.0"\ncreated-by = "sockd"\n[[packages]]\n'
        f"name = {text(distribution.name)}\nversion = {text(distribution.version)}\n"
        f"wheels = [{{ url = {text(distribution.url)}, hashes = {{ sha256 = {text(distribution.digest)} }} }}]\n"
    )


def _failed_by(distribution: Distribution, error: OSError) -> InstallFailed:
    """Make the error that callers get. It contains no path of the host; the worker's log does."""
    _log.warning("%s %s was not installed", distribution.name, distribution.version, exc_info=error)
    return _failed(distribution, error.strerror or type(error).__name__)


def _failed(distribution: Distribution, why: str) -> InstallFailed:
    return InstallFailed(f"{distribution.name} {distribution.version}: {why}")
