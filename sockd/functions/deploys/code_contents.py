"""Deploys of code: its entry point, the packages that it asks for, and their installation.

Owns nothing: the code store has the code, the install cache the packages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from sockd.base.blocking import in_thread
from sockd.base.errors import BadArchive, BadFunctionConfig, NoSuchFunction, ResolveFailed
from sockd.base.notes import Note, Progress
from sockd.functions.code import dependencies
from sockd.functions.code.code_store import CodeStore, CodeVersion
from sockd.functions.code.default_packages import DefaultPackages
from sockd.functions.code.dependencies import Dependencies
from sockd.functions.code.entrypoint import BOOTSTRAP, WASM, entry_point, provided, service_command
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.code.handler_check import check_handler, instead_of
from sockd.functions.code.setting_checks import EXEC_WRAPPER
from sockd.functions.deploys.content import CHECK_HANDLER, KEEP_PACKAGES, Content
from sockd.functions.deploys.package_users import DeployedPackages
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.registry.registry import Registry
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.interpreter_settings import Started
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache


class CodeContents:
    """The code of the deploys of one worker."""

    def __init__(
        self,
        registry: Registry,
        code: CodeStore,
        packages: InstallCache,
        deploying: DeployedPackages,
        modules: FunctionModules,
        default_packages: Sequence[str],
    ) -> None:
        """Args: default_packages: which are installed for functions that do not name them."""
        self._registry = registry
        self._code = code
        self._packages = packages
        self._deploying = deploying
        self._modules = modules
        self._default_packages = DefaultPackages(tuple(default_packages), packages)

    async def resolve(
        self, name: str, code: CodeVersion, config: FunctionConfig, overrides: dict[str, Any], progress: Progress
    ) -> Content:
        """Find the entry point of code and the packages that it asks for.

        Raises: BadArchive, BadFunctionConfig, BadWasm, PackagesFailed, NoPython."""
        python = await self._packages.interpreter(config.python)
        if config.runtime == WASM:
            handler = entry_point(code.path, config.handler, config.runtime)
            if config.service is not None:
                return Content(config, handler, Closure(), python)
            runtime = Dependencies("the runtime of WebAssembly", self._modules.requirement())
            return Content(config, handler, await self._closure(runtime, config, python, progress), python)
        is_program = provided(code.path, config.runtime)
        if not is_program:
            interpreter_settings.check(config.environment, Started.of_host(config.python))
        if config.service is not None:
            handler = service_command(code.path, config.command)[0]
        else:
            handler = entry_point(code.path, config.handler, config.runtime)
        if EXEC_WRAPPER in config.environment and not is_program:
            progress(
                Note(f'{EXEC_WRAPPER} is not run: a handler is forked; runtime = "provided" with awslambdaric runs it')
            )
        declared = await in_thread(dependencies.read, code.path, handler, python)
        for note in declared.notes:
            progress(Note(note))
        is_checked = bool(overrides.get(CHECK_HANDLER))
        if (is_checked or (config.handler is None and instead_of(handler))) and not is_program:
            has_packages = declared.text is not None
            try:
                handler = await in_thread(check_handler, code.path, handler, has_packages=has_packages, python=python)
            except BadFunctionConfig:
                if is_checked:
                    raise
        kept = self._kept(name, declared, config, python) if overrides.get(KEEP_PACKAGES) else None
        closure = await self._closure(declared, config, python, progress) if kept is None else kept
        return Content(config, handler, closure, python)

    async def prepare(self, name: str, code: CodeVersion, content: Content, progress: Progress) -> Content:
        """Install the packages of code, and compile it. Returns: the content with the default packages that it uses.

        Raises: PackagesFailed, BadWasm, SandboxFailed, StorageFull."""
        python, config = content.python, content.config
        assert python is not None
        if config.runtime == WASM and config.service is not None:
            await self._modules.compile_http(code.path, content.handler, progress)
            return content
        if config.runtime == WASM:
            await self._modules.compile(code.path, content.handler, content.closure, progress)
            await self._ensure(name, content.closure, progress)
            return content
        await in_thread(self._code.compile_for, code.digest, python)
        await self._ensure(name, content.closure, progress)
        if not config.packages.default or provided(code.path, config.runtime) == BOOTSTRAP:
            return content
        merged = await self._default_packages.added(content.closure, code.path, progress, python)
        await self._ensure(name, merged, progress)
        return content._replace(closure=merged)

    def _kept(self, name: str, declared: Dependencies, config: FunctionConfig, python: Interpreter) -> Closure | None:
        """The packages of the current version, if it asked for the same."""
        with contextlib.suppress(NoSuchFunction, BadArchive, ResolveFailed):
            record = self._registry.get(name)
            before = record.readable
            if (before.packages, before.build, before.python) != (config.packages, config.build, config.python):
                return None
            then = dependencies.read(self._code.path(record.digest), record.handler, python)
            if then.asks_for == declared.asks_for:
                return Closure.from_json(record.closure)
        return None

    async def _closure(
        self, declared: Dependencies, config: FunctionConfig, python: Interpreter, progress: Progress
    ) -> Closure:
        if declared.text is None:
            return Closure()
        progress(f"resolving {declared.source}")
        return await self._packages.resolve(
            declared.text,
            declared.line_words,
            config.packages.chosen,
            build=config.build,
            python=python,
            constraints=declared.constraints,
            is_complete=declared.is_complete,
        )

    async def _ensure(self, name: str, closure: Closure, progress: Progress) -> None:
        with self._deploying.holding(name, closure):
            await self._packages.ensure(closure, progress=progress)
            self._packages.check_built(closure)
