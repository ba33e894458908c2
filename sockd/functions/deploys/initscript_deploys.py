"""Initscripts of deploys: select the module, compile it, and keep it until the registry names it.

Owns the digests of current deploys, which must not be collected. Knows nothing of runs.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Set

from sockd.base.config import InitscriptsConfig
from sockd.base.errors import BadInitscript
from sockd.base.notes import Note
from sockd.functions.code.code_store import CodeVersion, read_bytes
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.modules.initscripts import Initscripts
from sockd.functions.serving.shared_files import SharedFiles


class InitscriptDeploys:
    """The deploys of initscripts of one worker."""

    def __init__(
        self, initscripts: Initscripts | None, config: InitscriptsConfig, shared: SharedFiles | None = None
    ) -> None:
        """Args: shared: None: the worker is in no group."""
        self._initscripts = initscripts
        self._shared = shared
        self._config = config
        self._held: list[str] = []

    @contextlib.asynccontextmanager
    async def chosen(
        self,
        code: CodeVersion,
        config: FunctionConfig,
        uploaded: bytes | None,
        current: str,
        progress: Callable[[str], None],
    ) -> AsyncIterator[str]:
        """The digest of a deploy's initscript, empty without one; not garbage until the block ends.

        It is the uploaded module, or the file of the code that the settings name, or else, if the settings have [initscript]
        without a file, the current version's.

        Args: current: digest of the current version's, empty without one.
        Raises: BadInitscript, SandboxFailed, NoCapacity; BadArchive: the code has no such file."""
        settings = config.initscript
        if uploaded is None and settings is not None and settings.wasm is not None:
            uploaded = read_bytes(code.path, settings.wasm, self._config.max_module_kb * 1024)
        if uploaded is not None:
            async with self.compiled(uploaded, progress) as digest:
                yield digest
        elif settings is None:
            if current:
                progress(
                    Note("without the initscript of the version before: sockd.toml has no [initscript], which keeps it")
                )
            yield ""
        elif current:
            yield current
        else:
            raise BadInitscript(
                "[initscript] has no wasm, and no module was uploaded: use sockd deploy --initscript FILE"
            )

    @contextlib.asynccontextmanager
    async def compiled(self, wasm: bytes, progress: Callable[[str], None]) -> AsyncIterator[str]:
        """A module, compiled and kept, that is not garbage until the block ends; its digest. Raises: as `chosen`."""
        if self._initscripts is None:
            raise BadInitscript("this worker has no initscripts")
        progress("compiling the initscript")
        digest = hashlib.sha256(wasm).hexdigest()
        self._held.append(digest)
        try:
            await self._initscripts.publish(wasm)
            if self._shared is not None:
                await self._shared.put_initscript(digest, wasm)
            yield digest
        finally:
            self._held.remove(digest)

    def collect(self, needed: Set[str]) -> None:
        """Delete what neither a remembered version nor a deploy under way needs."""
        if self._initscripts is not None:
            self._initscripts.store.gc(needed | set(self._held))
