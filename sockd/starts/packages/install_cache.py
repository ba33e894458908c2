"""The install cache: each distribution is downloaded, unpacked and byte-compiled once, for all functions (SOCK 4.2).

Owns the package store, uv's cache and the installs that run. Afterwards a sandbox needs no further step: its tree
contains the store, read-only, and a function's packages are a list of directories for sys.path. Functions with
different versions of a package do not conflict. Knows nothing of functions; the caller knows the users of a package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.config import PackageConfig
from sockd.base.errors import BadRequest, BuildFailed, InstallFailed, NoSuchPackage, PackagesFailed
from sockd.base.notes import Progress
from sockd.base.single_flight import SingleFlight
from sockd.isolation.roots.host_pythons import HostPythons, NoPython
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.starts.packages.built_names import module_of_another
from sockd.starts.packages.distribution import SANDBOX_STORE, Closure, Distribution
from sockd.starts.packages.indexes import WORKERS, Chosen, Indexes
from sockd.starts.packages.installer import Builds, Installer
from sockd.starts.packages.package_store import Package, PackageStore
from sockd.starts.packages.provided_names import NOTHING, Provided
from sockd.starts.packages.requirements import LINE
from sockd.starts.packages.resolver import Resolver
from sockd.starts.packages.uv import Uv

CLEAN_DEADLINE_S = 60.0


class PackageSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `sockd packages`."""

    key: str
    name: str
    version: str
    size_bytes: int
    installed_at: float
    modules: tuple[str, ...]
    used_by: tuple[str, ...]


class InstallCache:
    """The distributions of this worker. `recover` first, `aclose` last; in between any number of callers at once."""

    def __init__(self, config: PackageConfig, store: Path, tmp: Path, pythons: HostPythons | None = None) -> None:
        """
        Args:
            store: the package store; sandboxes see it as /packages.
            tmp: any directory on the store's file system; only its `packages/` is used, and emptied by `recover`.
            pythons: interpreters besides the worker's own, which packages may be for; None: there are none."""
        self._pythons = pythons
        self._config = config
        self._max_bytes = config.max_package_mb << 20
        self._store = PackageStore(store, tmp / "packages")
        self._indexes = Indexes(config)
        self._uv = Uv(store.parent / "uv-cache", index_url=config.index_url, secrets=self._indexes.secrets)
        self._resolver = Resolver(
            self._uv, self._store.tmp, deadline_s=config.resolve_deadline_s, max_file_bytes=self._max_bytes
        )
        self._builds: Builds | None = None
        self._installs: SingleFlight[str, None] = SingleFlight()
        self._removals: SingleFlight[str, None] = SingleFlight()
        self.installer = Installer(config, self._store, self._uv, self._indexes, self.interpreter, self._builder)
        self._resolves = asyncio.Semaphore(config.parallel_installs)
        self.hits = self.misses = 0
        """Distributions that somebody wanted: there, or not."""

    def build_with(self, builds: Builds) -> None:
        """Build packages from source with `builds`, as there are sandboxes now; before, such packages are refused."""
        self._builds = builds

    async def recover(self) -> list[str]:
        """Deletes what a dead daemon left half done, then knows what is installed.

        Returns: the keys of deleted packages; functions that use one get it again from `ensure`."""
        deleted = await in_thread(self._store.recover)
        await in_thread(self._uv.cache.mkdir, mode=0o700, exist_ok=True)
        await in_thread(self._uv.sweep)
        return deleted

    async def interpreter(self, version: str | None) -> Interpreter:
        """The interpreter of a version such as "3.13", for which packages can be installed. Raises: NoPython.

        Args: version: none: the worker's own."""
        if not version or version == OWN_PYTHON.short:
            return OWN_PYTHON
        if self._pythons is None:
            raise NoPython(f'python = "{version}": this worker has only Python {OWN_PYTHON.short}')
        return await self._pythons.find(version)

    async def resolve(
        self,
        requirements: str,
        line_words: str = LINE,
        chosen: Chosen = WORKERS,
        *,
        build: bool = False,
        python: Interpreter = OWN_PYTHON,
        constraints: str = "",
        is_complete: bool = False,
    ) -> Closure:
        """The pinned closure of the text of a requirements.txt; installs nothing.

        Args: line_words: as of `requirements.parse`; chosen: the indexes; build: whether packages without a wheel, and URLs,
            may be built from source; python: the interpreter that is to import them; constraints: versions that hold for what is
            installed, as lines of a requirements.txt; is_complete: the requirements name all that is to be installed.
        Raises: BadFunctionConfig for an index that the worker does not have; ResolveFailed with uv's words; PackagesFailed when
            the index does not answer in time."""
        variables = self._indexes.variables(chosen)
        async with self._resolves:
            lock = self._lock_in_sandbox if build else None
            return await self._resolver.resolve(
                requirements,
                line_words,
                variables,
                lock,
                python,
                constraints=constraints,
                is_complete=is_complete,
            )

    async def ensure(self, closure: Closure, *, progress: Progress | None = None) -> None:
        """Returns when every distribution of the closure is installed; at once when all are, as they usually are.

        A caller that is cancelled leaves; installs that it started go on, for others may wait for the same.
        Raises: InstallFailed with the words of all that failed, after all have ended; Draining."""
        missing = [distribution for distribution in closure.distributions if distribution.key not in self._store]
        self.misses += len(missing)
        self.hits += len(closure.distributions) - len(missing)
        if not missing:
            return
        tell = progress or (lambda line: None)
        results = await asyncio.gather(*(self._ensure_one(each, tell) for each in missing), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if len(failures) > 1 and all(isinstance(failure, InstallFailed) for failure in failures):
            raise InstallFailed("\n".join(map(str, failures))) from failures[0]
        if failures:
            raise failures[0]

    def missing(self, closure: Closure) -> list[str]:
        """The distributions of a closure that are not installed, as `name==version`."""
        return [f"{each.name}=={each.version}" for each in closure.distributions if each.key not in self._store]

    def check_built(self, closure: Closure) -> None:
        """Check that no distribution that was built holds modules of another. The closure is installed. Raises: BuildFailed."""
        if words := module_of_another(closure, lambda distribution: self.provided(distribution.key)):
            raise BuildFailed(words)

    def paths(self, closure: Closure) -> list[str]:
        """The sandbox's directories for sys.path, sorted by package name, so that equal closures import equally."""
        return [f"{SANDBOX_STORE}/{distribution.key}" for distribution in closure.distributions]

    def pth_paths(self, closure: Closure) -> list[str]:
        """Return the paths of `paths` that hold .pth files, which only `site.addsitedir` would run. The closure is
        installed."""
        return [f"{SANDBOX_STORE}/{key}" for key in self._keys(closure) if self._store[key].pth_files]

    def bin_paths(self, closure: Closure) -> list[str]:
        """The sandbox's directories for PATH: the scripts of the closure's packages. The closure is installed."""
        return [f"{SANDBOX_STORE}/{key}/bin" for key in self._keys(closure) if self._store[key].has_bin]

    def metadata(self, key: str) -> Package:
        """What is in an installed distribution. Raises: KeyError when it is not installed."""
        return self._store[key]

    def directory(self, key: str) -> Path:
        """Where the files of an installed distribution are."""
        return self._store.root / key

    @property
    def parent(self) -> Path:
        """The directory that the store is in, for what others keep of packages."""
        return self._store.root.parent

    def provided(self, key: str) -> Provided:
        """What imports may find in a distribution; nothing, if it is not installed."""
        return (self._store[key].provided or NOTHING) if key in self._store else NOTHING

    def snapshot(self, users: Callable[[str], Sequence[str]] = lambda key: ()) -> list[PackageSnapshot]:
        """What is installed, sorted by key.

        Args:
            users: the names of the functions that use a key."""
        return [
            PackageSnapshot(
                key=package.key,
                name=package.name,
                version=package.version,
                size_bytes=package.size_bytes,
                installed_at=package.installed_at,
                modules=package.modules,
                used_by=tuple(users(package.key)),
            )
            for package in self._store
        ]

    async def remove(self, key: str, *, users: Callable[[str], Sequence[str]]) -> None:
        """Deletes a distribution that no function uses; from here on it is not installed, whatever happens to this call.

        Who deploys must be among the users before it calls `ensure`.
        Raises: NoSuchPackage; BadRequest when it is used."""
        if key not in self._store:
            raise NoSuchPackage(f"no package {key} is installed")
        if names := users(key):
            raise BadRequest(f"package {key} is used by {', '.join(sorted(names))}")
        name = self._store[key].name
        self._store.forget(key)
        await self._removals.do(key, partial(self._remove, key, name))

    async def preload(self, requirements: Sequence[str], *, progress: Progress | None = None) -> list[Closure]:
        """Resolves and installs each of the given requirements by itself, as functions would that have only this one.

        Raises: PackagesFailed at the end, with what failed; the others are installed all the same."""
        closures: list[Closure] = []
        failures: list[str] = []
        for requirement in requirements:
            try:
                closure = await self.resolve(requirement)
                await self.ensure(closure, progress=progress)
                closures.append(closure)
            except PackagesFailed as error:
                failures.append(f"{requirement}: {error.message}")
        if failures:
            raise PackagesFailed("\n".join(failures))
        return closures

    async def aclose(self) -> None:
        """Stops what runs and deletes its leftovers; what is installed stays."""
        await self._installs.aclose()
        await self._removals.aclose()

    def _keys(self, closure: Closure) -> list[str]:
        return [distribution.key for distribution in closure.distributions]

    async def _lock_in_sandbox(
        self, requirements: str, variables: Mapping[str, str] | None, python: Interpreter
    ) -> str:
        return await self._builder().lock(requirements, self._uv.public_variables(variables or {}), python)

    def _builder(self) -> Builds:
        if self._builds is None:
            raise BuildFailed("nothing can be built from source before the worker has started")
        return self._builds

    async def _ensure_one(self, distribution: Distribution, tell: Progress) -> None:
        tell(f"{'building' if distribution.source else 'installing'} {distribution.name} {distribution.version}")
        await self._installs.do(distribution.key, partial(self._install, distribution))
        size_bytes = self._store[distribution.key].size_bytes
        tell(f"installed {distribution.name} {distribution.version}: {size_bytes / 1e6:.1f} MB")

    async def _install(self, distribution: Distribution) -> None:
        await self._removals.settled(distribution.key)
        await self.installer.install(distribution)

    async def _remove(self, key: str, name: str) -> None:
        await in_thread(self._store.withdraw, key)
        # The store's files are links to uv's: only without both is the disk free. uv waits for other uvs on this cache;
        # if they take too long, the next removal of a package of this name cleans up.
        try:
            async with asyncio.timeout(CLEAN_DEADLINE_S):
                await self._uv.run("cache", "clean", name, cwd=self._store.tmp, max_file_bytes=self._max_bytes)
        except TimeoutError:
            return
