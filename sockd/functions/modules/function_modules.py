"""The compiled modules of functions with `runtime = "wasm"`, in the functions' code next to other bytecode.

    code/<digest>/fn.wasm                                            as it was deployed
    code/<digest>/__pycache__/fn.wasm.wasmtime-<version>-<format>.cwasm
    code/<digest>/__pycache__/fn.wasm.http-<build>.cwasm             of a service, by the build of its host

Owns the compiles that run; the code store owns the files. A sandbox loads the file with the wasmtime among its packages. The
versions agree: a deploy compiles with the worker's wasmtime, and asks for the same one. A file that is lost, as by an upgrade
that has changed the format, is compiled again if the worker still has that version.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.config import MB, WasmConfig
from sockd.base.errors import BadWasm, ModuleLost, StorageFull
from sockd.base.extras import installing
from sockd.base.notes import Progress
from sockd.base.single_flight import SingleFlight
from sockd.base.syncing import sync_directory
from sockd.functions.code.code_store import read_bytes
from sockd.functions.code.entrypoint import WASM
from sockd.functions.modules.module_compiler import FUNCTION, HTTP, Bounds, ModuleCompiler
from sockd.functions.registry.function_record import FunctionRecord
from sockd.starts.packages.distribution import Closure
from sockd_initscripts.errors import BadModule
from sockd_zygote import wasm_host
from sockd_zygote.handlers.wasm.runtime import PACKAGE, compiled_path


class FunctionModules:
    """The modules of one worker's functions."""

    def __init__(self, compiler: ModuleCompiler | None, config: WasmConfig) -> None:
        """Args: compiler: None: this worker compiles none."""
        self._compiler = compiler
        self._config = config
        self._compiling: SingleFlight[Path, None] = SingleFlight()

    def requirement(self) -> str:
        """Return the package that a function needs to run what is compiled here, as a line of a requirements.txt.

        Raises: BadWasm, where nothing is compiled."""
        self._check()
        return f"{PACKAGE}=={importlib.metadata.version(PACKAGE)}\n"

    async def compile(self, code: Path, module: str, closure: Closure, progress: Progress) -> None:
        """Compile a module, unless that has been done. Args: code: published; module: its path there.

        Raises: BadWasm, BadArchive, SandboxFailed, StorageFull."""
        path = compiled_file(code, module, closure)
        if not path.exists():
            await self._make(code, module, path, FUNCTION, progress)

    async def compile_http(self, code: Path, module: str, progress: Progress) -> None:
        """Compile a component for wasi:http, unless that has been done. Raises: as `compile`."""
        self._check()
        if not wasm_host.build():
            raise BadWasm(
                'this worker hosts no components for wasi:http, which runtime = "wasm" with kind = "service" is for: build its '
                "host with `make wasm-host`, which needs cargo"
            )
        path = http_file(code, module)
        if not path.exists():
            await self._make(code, module, path, HTTP, progress)

    async def restore(self, record: FunctionRecord, code: Path, closure: Closure) -> None:
        """Compile the module of a recorded function again, if it has one that is lost. Raises: ModuleLost; as `compile`."""
        if record.settings.runtime == WASM and record.settings.service is not None:
            await self.compile_http(code, record.handler, lambda line: None)
        elif record.settings.runtime == WASM:
            if version_in(closure) != own_version():
                check(record, code, closure)
            await self.compile(code, record.handler, closure, lambda line: None)

    async def aclose(self) -> None:
        """Stop compiling."""
        await self._compiling.aclose()

    def _check(self) -> ModuleCompiler:
        """Raises: BadWasm."""
        if self._compiler is None:
            raise BadWasm(
                "this worker compiles no WebAssembly: initscripts.enabled is false, and the compiler is theirs"
            )
        if lacking := self._compiler.missing():
            raise BadWasm(
                f"this worker compiles no WebAssembly: {', '.join(lacking)} not installed ({installing('initscripts')})"
            )
        return self._compiler

    async def _make(self, code: Path, module: str, path: Path, program: str, progress: Progress) -> None:
        progress(f"compiling {module}")
        await self._compiling.do(path, lambda: self._compile(code, module, path, program))

    async def _compile(self, code: Path, module: str, path: Path, program: str) -> None:
        compiler, config = self._check(), self._config
        limit = config.max_module_mb * MB
        bounds = Bounds(limit, config.max_compiled_mb * MB, config.compile_memory_mb * MB, config.compile_deadline_s)
        wasm = await in_thread(read_bytes, code, module, limit)
        try:
            compiled = await compiler.compile(program, wasm, bounds)
        except BadModule as error:
            raise BadWasm(f"{module} {error.reason}") from None
        await in_thread(_write, path, compiled)


def compiled_file(code: Path, module: str, closure: Closure) -> Path:
    """The compiled file of a module, there or not."""
    return code / compiled_path(module, version_in(closure))


def http_file(code: Path, module: str) -> Path:
    """The file of a component that the host here has compiled, there or not."""
    return code / wasm_host.compiled_path(module, wasm_host.build())


def check(record: FunctionRecord, code: Path, closure: Closure) -> None:
    """Check whether a function's compiled module is there, if it has one. Raises: ModuleLost."""
    is_module = WASM in record.config and record.settings.runtime == WASM  # settings that are read stay in memory
    if not is_module:
        return
    is_http = record.settings.service is not None
    path = http_file(code, record.handler) if is_http else compiled_file(code, record.handler, closure)
    if not path.exists():
        raise ModuleLost(record.name)


def own_version() -> str:
    """Return the version of the worker's own runtime, which compiles; empty without one."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_in(closure: Closure) -> str:
    """Return the version of the runtime among a function's packages."""
    return next((each.version for each in closure.distributions if each.name == PACKAGE), "")


def _write(path: Path, data: bytes) -> None:
    """Publish a file by rename; sandboxes, which are other users, read it. Raises: StorageFull, OSError."""
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o444)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull from error
        raise
