"""The initscript store: every deployed WebAssembly module by digest, with its compiled form.

    initscripts/<sha256>.wasm             as it was deployed
    initscripts/<sha256>-<key>.cwasm      compiled; the key names the compiler, its settings and the machine
    tmp/initscript-<uuid>                 being written

Owns these files. wasmtime does not validate a compiled module, which is machine code. It is therefore
created only here, in a confined process; the directory is root's alone, files are published by rename, and the
engine, which gets a descriptor, checks the digest at the file's end at every load. After an upgrade of wasmtime or of
sockd the key is another, and what is needed is compiled again from its source.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import uuid
from collections.abc import Set
from pathlib import Path

import sockd_initscripts
from sockd.base.blocking import in_thread
from sockd.base.config import MB, InitscriptsConfig
from sockd.base.errors import BadInitscript, NoCapacity
from sockd.base.extras import installing
from sockd.base.single_flight import SingleFlight
from sockd.functions.modules.module_compiler import INITSCRIPT, Bounds, ModuleCompiler
from sockd_initscripts.errors import BadModule

BUILDING = "initscript-"
NAME = re.compile(r"([0-9a-f]{64})(?:\.wasm|-[0-9a-f]{16}\.cwasm)")
MAX_COMPILED_BYTES = 64 * MB


class InitscriptStore:
    """The modules below `root`. What touches the disk blocks; all is small."""

    def __init__(self, root: Path, tmp: Path, compiler: ModuleCompiler, config: InitscriptsConfig) -> None:
        """Stores its arguments; both directories are on one file system, writable by the worker alone."""
        self._root = root
        self._tmp = tmp
        self.compiler = compiler
        self._config = config
        self._compiling: SingleFlight[str, None] = SingleFlight()

    def recover(self) -> None:
        """Make the directory, root's alone, and remove what a killed daemon left half written."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._root.chmod(0o700)
        for leftover in self._tmp.glob(f"{BUILDING}*"):
            leftover.unlink()

    async def publish(self, wasm: bytes) -> str:
        """Compile a module and keep it; returns its digest. One that is there already is only found again.

        Raises: BadInitscript, in words that name what is wrong with it; SandboxFailed, when it cannot be compiled here;
            NoCapacity, when the disk is full."""
        if lacking := self.compiler.missing():
            raise BadInitscript(
                f"this worker cannot run initscripts: {', '.join(lacking)} not installed ({installing('initscripts')})"
            )
        digest = hashlib.sha256(wasm).hexdigest()
        if not (self._root / f"{digest}.wasm").exists() or not self._compiled(digest).exists():
            await self._compiling.do(digest, lambda: self._compile(digest, wasm))
        return digest

    def has(self, digest: str) -> bool:
        """Whether a module is here, compiled or not."""
        return (self._root / f"{digest}.wasm").exists()

    def source(self, digest: str) -> bytes:
        """Return a module as it was deployed. Blocks. Raises: OSError."""
        return (self._root / f"{digest}.wasm").read_bytes()

    def keep(self, wasm: bytes) -> str:
        """Keep a module that was deployed to another worker, for `ensure`; returns its digest. Blocks. Raises: NoCapacity."""
        digest = hashlib.sha256(wasm).hexdigest()
        self._write(self._root / f"{digest}.wasm", wasm)
        return digest

    async def ensure(self, digest: str) -> None:
        """Compile a module that is kept, unless this compiler has done so before. Raises: as `publish`; OSError."""
        if not self._compiled(digest).exists():
            await self.publish(await in_thread(self.source, digest))

    def open(self, digest: str) -> int | None:
        """A descriptor of the compiled module, the caller's; None when this compiler has not made one."""
        try:
            return os.open(self._compiled(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def size_bytes(self, digest: str) -> int:
        """Return the size of a module as it was deployed, in bytes. Raises: OSError."""
        return (self._root / f"{digest}.wasm").stat().st_size

    def gc(self, keep: Set[str]) -> None:
        """Remove every module that is not in `keep`, and what other compilers made of those that are."""
        for name in os.listdir(self._root):
            found = NAME.fullmatch(name)
            if found is None or found[1] not in keep or name not in (f"{found[1]}.wasm", self._compiled(found[1]).name):
                (self._root / name).unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Stop compiling."""
        await self._compiling.aclose()

    async def _compile(self, digest: str, wasm: bytes) -> None:
        compiled = await self._run_compiler(wasm)
        await in_thread(self._write, self._compiled(digest), compiled)
        await in_thread(self._write, self._root / f"{digest}.wasm", wasm)

    async def _run_compiler(self, wasm: bytes) -> bytes:
        """What the confined compiler makes of a module. Raises: BadInitscript, SandboxFailed."""
        settings = self._config
        bounds = Bounds(
            settings.max_module_kb * 1024,
            MAX_COMPILED_BYTES,
            settings.compile_memory_mb * MB,
            settings.compile_deadline_s,
        )
        try:
            return await self.compiler.compile(INITSCRIPT, wasm, bounds)
        except BadModule as error:
            raise BadInitscript(f"the initscript {error.reason}") from None

    def _write(self, final: Path, data: bytes) -> None:
        """Publish a file by rename. Its directory is root's alone; the file itself may be read by any process that has it
        open, because the engine opens it anew through the descriptor that it was given."""
        building = self._tmp / f"{BUILDING}{uuid.uuid4().hex}"
        try:
            with open(building, "xb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o444)
                file.flush()
                os.fsync(file.fileno())
            building.rename(final)
        except OSError as error:
            building.unlink(missing_ok=True)
            raise NoCapacity(f"the initscript cannot be stored: {error.strerror}") from error

    def _compiled(self, digest: str) -> Path:
        return self._root / f"{digest}-{compiler_key()}.cwasm"


@functools.cache
def compiler_key() -> str:
    """What a compiled module depends on besides its source: wasmtime's version, our settings for it, the architecture."""
    ours = Path(sockd_initscripts.__file__).parent
    settings = b"".join((ours / "engine" / name).read_bytes() for name in ("abi.py", "compiled_file.py", "modules.py"))
    try:
        version = importlib.metadata.version("wasmtime")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    facts = f"{version} {platform.machine()} ".encode() + settings
    return hashlib.sha256(facts).hexdigest()[:16]
