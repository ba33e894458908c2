"""The fake worker whose functions are deployed with the settings that a request gives them, in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sockd.base.config import FunctionDefaults
from sockd.base.notes import Progress
from sockd.base.telemetry import FunctionInfo
from sockd.functions.code.function_config import FunctionConfig
from tests.http.fake_worker import FakeFunctions, FakeWorker
from tests.http.worker_answers import ERRORS, info


class DeployedFunctions(FakeFunctions):
    """Functions with settings."""

    def __init__(self, worker: FakeWorker) -> None:
        super().__init__(worker)
        self.runs = 0
        self.holding: asyncio.Event | None = None
        """If it is there, deploys wait for it."""
        self.deploying = asyncio.Event()

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
        self.put(name, config, zip_path.read_bytes())
        return info(name)


class FakeLambda(FakeWorker):
    """`slow`, `bug` and the functions that fail are deployed."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {"slow", "bug", *ERRORS}
        self.functions: DeployedFunctions = DeployedFunctions(self)
        for name in sorted(self.names):
            self.functions.put(name, FunctionConfig())
