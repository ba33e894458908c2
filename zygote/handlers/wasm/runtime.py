"""The WebAssembly runtime of functions: its settings, and where a compiled module lies.

Pure, but for `machine`. The compiler of deploys and the sandbox that runs what it made must agree about all of this, so both
import it: wasmtime loads a file only if the version and the settings that made it are its own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import wasmtime

PACKAGE = "wasmtime"
"""The distribution that functions get for it."""
FORMAT = 1
"""Raised when `machine` changes: files that were made with other settings are not loaded."""
STACK_BYTES = 1 << 20
"""A module's stack: interpreters that were compiled to WebAssembly need more than the runtime's default, and a sandbox's main
thread has 8 MB."""
MAGIC = b"\0asm"
_MODULE_VERSION = b"\1\0\0\0"
"""What follows MAGIC in a core module; a component has a layer there."""


def compiled_path(module: str, version: str) -> str:
    """Where the compiled file of a module is in the code, next to other bytecode, which no archive can bring.

    Args: module: its path in the code; version: of the runtime."""
    directory, name = os.path.split(module)
    return os.path.join(directory, "__pycache__", f"{name}.{PACKAGE}-{version}-{FORMAT}.cwasm")


def is_component(head: bytes) -> bool:
    """Whether the first 8 bytes of a WebAssembly file are a component's, and not a module's."""
    return head[4:8] != _MODULE_VERSION


def machine() -> wasmtime.Engine:
    """Return an engine with our settings. The target is the architecture's baseline: a backup may move to another machine."""
    import wasmtime

    config = wasmtime.Config()
    config.target = f"{os.uname().machine}-unknown-linux-gnu"
    config.epoch_interruption = True
    config.max_wasm_stack = STACK_BYTES
    config.cranelift_opt_level = "speed"
    return wasmtime.Engine(config)
