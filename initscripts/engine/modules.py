"""Modules: WebAssembly bytes, checked, compiled to a file, and loaded from it.

Compiling happens once, away from the engine, in a process that may fail (`python -m sockd_initscripts.engine.compile`). Its
product is machine code, and wasmtime believes whatever such a file says: a flipped bit is not noticed, a forged file is code
of the engine. So a file that is loaded comes from our own compile: it is never a developer's, lies where only root writes, and
ends with a digest of what precedes, which is checked at every load.

The target is the architecture's baseline and not this CPU: a store may move to another machine of the same architecture.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import threading
from pathlib import Path

import msgspec
import wasmtime

from sockd_initscripts.engine import abi
from sockd_initscripts.engine.compiled_file import FORMAT, open_seal, seal
from sockd_initscripts.errors import BadModule

WASMTIME_VERSION = importlib.metadata.version("wasmtime")
MODULE_LIMIT_BYTES = 1024 * 1024
PAGE_BYTES = 64 * 1024
START_SECTION = 8
WASM_STACK_BYTES = 512 * 1024
"""The stack of a guest. A quarter of its thread's: the host functions it calls stand on the same stack."""
_KINDS = {"i": wasmtime.ValType.i32(), "I": wasmtime.ValType.i64()}


class ModuleInfo(msgspec.Struct, frozen=True):
    """What a module is, for its developer."""

    size_bytes: int
    imports: list[str]
    exports: list[str]
    memory_pages: int
    """Its linear memory at the start, in pages of 64 KiB."""


def machine() -> wasmtime.Engine:
    """An engine with our settings: the one that compiles and the one that runs must be alike."""
    config = wasmtime.Config()
    config.target = f"{platform.machine()}-unknown-linux-gnu"
    config.epoch_interruption = True
    config.max_wasm_stack = WASM_STACK_BYTES
    config.cranelift_opt_level = "speed"
    # Not after a fork and not in the engine: a compile has a process of its own, and there one thread is enough.
    config.parallel_compilation = False
    config.wasm_threads = False
    config.wasm_memory64 = False
    config.wasm_multi_memory = False
    config.wasm_relaxed_simd = False
    config.wasm_component_model = False
    return wasmtime.Engine(config)


def signature(name: str) -> wasmtime.FuncType:
    """The type of one of the ABI's functions."""
    parameters, results = abi.FUNCTIONS[name]
    return wasmtime.FuncType([_KINDS[kind] for kind in parameters], [_KINDS[kind] for kind in results])


def check_module(wasm: bytes, *, limit_bytes: int = MODULE_LIMIT_BYTES) -> ModuleInfo:
    """What the module is; raises BadModule when it could never run."""
    return _inspect(_compile(machine(), wasm, limit_bytes), len(wasm))


def compile_module(wasm: bytes, *, limit_bytes: int = MODULE_LIMIT_BYTES) -> bytes:
    """The content of its compiled file; raises BadModule when it could never run."""
    module = _compile(machine(), wasm, limit_bytes)
    return seal(bytes(module.serialize()), _inspect(module, len(wasm)).memory_pages)


def cache_name(wasm: bytes) -> str:
    """How the compiled file of a module is called: it names all that the content depends on."""
    return f"{hashlib.sha256(wasm).hexdigest()}-{WASMTIME_VERSION}-{platform.machine()}-{FORMAT}.cwasm"


class LoadedModule(msgspec.Struct, frozen=True):
    """A module in memory, its imports resolved: any number of guests may be made of it, in any thread."""

    pre: wasmtime.InstancePre
    memory_bytes: int
    """The bytes of linear memory at the start."""


class ModuleFile:
    """A compiled file, and the module once it is loaded. Any thread may load; the loop unloads.

    Args: source: a path, or an fd that is ours to close."""

    def __init__(self, source: str | Path | int) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._loaded: LoadedModule | None = None

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def load(self, linker: wasmtime.Linker) -> LoadedModule:
        """The module, from memory if it is there. Raises BadModule."""
        loaded = self._loaded
        if loaded is not None:
            return loaded
        with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = _load(linker, self._source)
                except (OSError, wasmtime.WasmtimeError) as error:
                    raise BadModule(f"the module cannot be loaded: {first_line(error)}") from error
            return self._loaded

    def unload(self) -> None:
        """Forget the module, not the file: guests that run keep theirs."""
        self._loaded = None

    def close(self) -> None:
        """Forget both."""
        with self._lock:
            self._loaded = None
            source, self._source = self._source, "/nonexistent"
        if isinstance(source, int):
            os.close(source)


def _load(linker: wasmtime.Linker, source: str | Path | int) -> LoadedModule:
    path = f"/proc/self/fd/{source}" if isinstance(source, int) else str(source)
    with open(path, "rb", buffering=0) as file:
        memory_pages = open_seal(file.read())
    # What else makes a module one was looked at before it was compiled; that takes longer than all the rest here.
    module = wasmtime.Module.deserialize_file(linker.engine, path)
    return LoadedModule(linker.instantiate_pre(module), memory_pages * PAGE_BYTES)


def _compile(engine: wasmtime.Engine, wasm: bytes, limit_bytes: int) -> wasmtime.Module:
    if len(wasm) > limit_bytes:
        raise BadModule(f"the module has {len(wasm)} bytes, {limit_bytes} are allowed")
    if not wasm.startswith(b"\0asm"):  # the library would take text, too
        raise BadModule("not a WebAssembly binary")
    try:
        wasmtime.Module.validate(engine, wasm)
        # Instances are made before there is a run for them; nothing of the guest's may run then.
        if START_SECTION in sections(wasm):
            raise BadModule(f"a start function: what it does belongs into {abi.EXPORTED_ENTRY!r}")
        return wasmtime.Module(engine, wasm)
    except wasmtime.WasmtimeError as error:
        raise BadModule(f"malformed: {first_line(error)}") from error


def _inspect(module: wasmtime.Module, size_bytes: int) -> ModuleInfo:
    imports = module.imports
    for wanted in imports:
        _check_import(wanted)
    exports = {export.name: export.type for export in module.exports}
    memory = exports.get(abi.EXPORTED_MEMORY)
    if not isinstance(memory, wasmtime.MemoryType):
        raise BadModule(f"no memory is exported as {abi.EXPORTED_MEMORY!r}")
    entry = exports.get(abi.EXPORTED_ENTRY)
    if not isinstance(entry, wasmtime.FuncType) or entry.params or entry.results:
        raise BadModule(f"no function () -> () is exported as {abi.EXPORTED_ENTRY!r}")
    names = [str(wanted.name) for wanted in imports]
    return ModuleInfo(size_bytes, names, list(exports), memory.limits.min)


def _check_import(wanted: wasmtime.ImportType) -> None:
    name = f"{wanted.module}.{wanted.name}"
    if wanted.module != abi.IMPORT_MODULE or wanted.name not in abi.FUNCTIONS:
        raise BadModule(f"unknown import {name}")
    kind = wanted.type
    ours = signature(str(wanted.name))
    if not isinstance(kind, wasmtime.FuncType) or (kind.params, kind.results) != (ours.params, ours.results):
        raise BadModule(f"import {name} is not {describe(ours)}")


def sections(wasm: bytes) -> list[int]:
    """The ids of the sections of a valid module."""
    found = []
    position = 8
    while position < len(wasm):
        found.append(wasm[position])
        size = shift = 0
        more = True
        while more:  # LEB128
            position += 1
            size |= (wasm[position] & 0x7F) << shift
            shift += 7
            more = wasm[position] >= 0x80
        position += 1 + size
    return found


def describe(kind: wasmtime.FuncType) -> str:
    """A function's type as WebAssembly's text form has it."""
    return f"(param {' '.join(map(str, kind.params))}) (result {' '.join(map(str, kind.results))})"


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300]
