"""The garbage of deploys: code, images and initscripts that no remembered version and no deploy under way needs.

Owns nothing: each store deletes its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence

from sockd.functions.code.code_in_use import CodeInUse
from sockd.functions.code.code_store import CodeStore
from sockd.functions.deploys.initscript_deploys import InitscriptDeploys
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.function import Function
from sockd.images.store.image_store import ImageStore

DRAIN_S = 30.0
"""Time for the last requests of a removed function, which keep its code on disk."""
REGISTRY_LOST = (
    "no function is recorded, but there is the code of %d versions: if registry.sqlite was lost, stop sockd and restore a backup "
    "before you deploy (sockd restore); the next deploy deletes this code"
)

_log = logging.getLogger(__name__)


class Garbage:
    """The garbage of one worker."""

    def __init__(
        self,
        registry: Registry,
        code: CodeStore,
        in_use: CodeInUse,
        scripts: InitscriptDeploys,
        images: ImageStore | None,
    ) -> None:
        """Args: images: None: functions run in no images."""
        self._registry = registry
        self._code = code
        self._in_use = in_use
        self._scripts = scripts
        self._images = images

    def collect_at_start(self) -> None:
        """Delete what a killed worker had not recorded. Blocks briefly.

        Nothing is deleted if no function is recorded at all: the registry may have been lost, and its backup needs the code."""
        if self._registry.list():
            self._code.gc(self._registry.digests())
            self._scripts.collect(self._registry.initscripts())
        elif digests := self._code.digests():
            _log.error(REGISTRY_LOST, len(digests))

    def holding(self, digest: str) -> contextlib.AbstractContextManager[None]:
        """Code that is no garbage until the block ends."""
        return self._in_use.holding(digest)

    async def collect(self) -> None:
        """Delete what nothing needs any more."""
        await self._in_use.collect()
        if self._images is not None:
            await self._images.collect(self._registry.images())
        self._scripts.collect(self._registry.initscripts())

    def collect_closed(
        self, functions: Sequence[Function], allowance: Allowance | None = None
    ) -> Coroutine[None, None, None]:
        """Keep the code of closed versions from now on.

        Args: allowance: of the whole function, if that was closed.
        Returns: a coroutine that waits for their last requests, then collects."""
        held = contextlib.ExitStack()
        for function in functions:
            held.enter_context(self._in_use.holding(function.version.record.digest))
        return self._collect_closed(held, functions, allowance)

    async def _collect_closed(
        self, held: contextlib.ExitStack, functions: Sequence[Function], allowance: Allowance | None
    ) -> None:
        with held:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await asyncio.gather(*(function.drain() for function in functions))
                    if allowance is not None:
                        await allowance.admission.drain()
            if allowance is not None:
                allowance.egress.close()
        await self.collect()
