"""What one daemon has on a state directory, from which tests deploy functions; no sandbox is made.

Registry, code store, install cache and budget are real."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sockd.base.config import CodeConfig, Config, PackageConfig
from sockd.functions.code.code_store import CodeStore
from sockd.functions.functions import Functions
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.function import Caches
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.starts.packages.install_cache import InstallCache
from tests.support.servers.package_index import PackageIndex

MB = 1 << 20


class Handlers:
    """A handler cache that keeps nothing."""

    def __init__(self) -> None:
        self.dropped: list[Any] = []

    def drop(self, program: Any) -> None:
        self.dropped.append(program)


class Harness:
    """What one daemon would have on a state directory."""

    def __init__(self, state: Path, index: PackageIndex, registry: Registry, networks: Networks | None = None) -> None:
        for name in ("tmp", "code", "packages"):
            (state / name).mkdir(exist_ok=True)
        self.state = state
        self.progress: list[str] = []
        """What all deploys said."""
        self.budget = MemoryBudget(1024 * MB)
        self.handlers = Handlers()
        self.packages = InstallCache(PackageConfig(index_url=index.url), state / "packages", state / "tmp")
        code = CodeStore(state / "code", state / "tmp", CodeConfig())
        code.recover()
        self.registry = registry
        lineages = SimpleNamespace(expect=lambda lineage, at_once: None, release=lambda lineage: None)
        tree: Any = SimpleNamespace(lineages=lineages)
        self.used: list[list[Any]] = []
        """For each removal, the views that were left."""
        learner: Any = SimpleNamespace(
            adopt=lambda view: None,
            end_unused=self.used.append,
            forget_reason=lambda view: None,
            functions_before=list,
        )
        caches = Caches(self.handlers, tree, starts=None, learner=learner, budget=self.budget, networks=networks)  # type: ignore[arg-type]
        self.functions = Functions(Config(), self.registry, code, self.packages, caches)

    async def deploy(self, name: str, files: dict[str, str], **overrides: Any) -> Any:
        path = self.state / "tmp" / f"{name}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        try:
            return await self.functions.deploys.deploy(name, path, {"check": False, **overrides}, self.progress.append)
        finally:
            path.unlink()


@contextlib.asynccontextmanager
async def opened(state: Path, index: PackageIndex, networks: Networks | None = None) -> AsyncIterator[Harness]:
    harness = Harness(state, index, await Registry.open(state / "registry.sqlite", keep_versions=2), networks)
    try:
        await harness.packages.recover()
        harness.functions.load()
        yield harness
    finally:
        harness.functions.close()
        await harness.packages.aclose()


HELLO = {"f.py": "def f(event): return 1"}


def with_packages(*requirements: str) -> dict[str, str]:
    return {"f.py": "def f(event): return 1", "requirements.txt": "\n".join(requirements)}
