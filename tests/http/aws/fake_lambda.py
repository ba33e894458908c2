"""The fake worker with what AWS's API needs besides, its functions deployed and configured in memory."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from pathlib import Path
from typing import Any

from sockd.base import errors
from sockd.base.config import FunctionDefaults
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import FunctionInfo
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.registry.registry import Registry
from sockd.http.aws.worker import Details, InvocationResult, LambdaWorker
from sockd.http.run.worker_api import Progress
from tests.http.fake_worker import ERRORS, FakeWorker, info, invocation
from tests.support.memory_store import MemoryStore


class FakeVersions:
    """Nothing was published. (What is, is tested in front of a real worker.)"""

    class provisioning:
        wanted = staticmethod(lambda name: 0)

    def alias(self, name: str, alias: str) -> None:
        raise errors.NoSuchVersion(name, alias)


class FakeLambda(FakeWorker):
    """As `FakeWorker`; what was deployed here has details."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {"slow", "bug", *ERRORS}
        self.registry = Registry(MemoryStore())
        self.urls = FunctionUrls(self.registry)
        self._details: dict[str, Details] = {}
        self._times = itertools.count(1_700_000_000)
        for name in sorted(self.names):
            self._put(name, FunctionConfig())
        self.versions: Any = FakeVersions()
        self.runs = 0
        self.holding: asyncio.Event | None = None
        """If it is there, deploys wait for it."""
        self.deploying = asyncio.Event()

    def _put(self, name: str, config: FunctionConfig, content: bytes = b"") -> None:
        version = self._details[name].record.version + 1 if name in self._details else 1
        digest = hashlib.sha256(content).hexdigest()
        now = float(next(self._times))
        record = FunctionRecord(name, version, digest, len(content), "f:f", config.to_json(), "", "", now, now)
        self._details[name] = Details(record, config)
        self.names.add(name)
        self.registry.put(
            name, digest=digest, code_bytes=len(content), handler="f:f", config=config.to_json(), closure=""
        )

    async def invoke_with_log(self, request: InvokeRequest) -> InvocationResult:
        name, payload = request.name, request.payload
        error = ERRORS[name]() if name in ERRORS else None
        if isinstance(error, errors.TooManyRequests):
            raise error
        self.function(name)
        return InvocationResult(invocation(payload), error, b"x" * 5000 + b"\nlast line", 128, 30 << 20)

    async def deploy(
        self,
        name: str,
        zip_path: Path,
        *,
        overrides: dict[str, Any],
        progress: Progress,
        initscript: bytes | None = None,
    ) -> FunctionInfo:
        self.runs += 1
        self.deploying.set()
        if self.holding is not None:
            await self.holding.wait()
        settings = {key: value for key, value in overrides.items() if key != "check"}
        config = FunctionConfig.from_toml(None, FunctionDefaults(), settings)
        self._put(name, config, zip_path.read_bytes())
        return info(name)

    async def remove(self, name: str) -> None:
        await super().remove(name)
        self.registry.delete(name)
        del self._details[name]

    async def delete_version(self, name: str, number: int) -> None:
        raise NotImplementedError("versions are tested on a daemon")

    async def delete_alias(self, name: str, alias: str) -> None:
        raise NotImplementedError("aliases are tested on a daemon")

    def details(self, name: str, qualifier: str = "") -> Details:
        self.function(name)
        if name not in self._details:
            self._put(name, FunctionConfig())
        return self._details[name]

    def all_details(self) -> list[Details]:
        return [self._details[name] for name in sorted(self._details)]

    async def configure(self, name: str, changes: dict[str, Any]) -> None:
        details = self.details(name)
        self._put(name, details.config.changed(changes))

    async def check_archive(self, zip_path: Path) -> None:
        if not zip_path.read_bytes().startswith(b"PK"):
            raise errors.BadArchive("not a zip file")

    def default_concurrency(self) -> int:
        return 10

    def sandboxes_that_fit(self) -> int:
        return 77


_verified: type[LambdaWorker] = FakeLambda
