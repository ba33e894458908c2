"""The host of components for wasi:http: a program in Rust, which `make wasm-host` builds here. Without it they are refused.

    sockd-wasm-host compile               the compiler of deploys runs it, confined
    sockd-wasm-host serve FILE [OPTIONS]  the program of a service, in its sandbox

Both trees have this directory, at the same place. A compiled file is loaded by the build alone that has made it.
"""

from __future__ import annotations

import functools
import hashlib
import os

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sockd-wasm-host")
IN_SANDBOX = "/opt/sockd/sockd_zygote/wasm_host/sockd-wasm-host"
HOST_MB = 32
"""Memory of a sandbox that its guests cannot have; of less than twice as much, half is theirs."""

AHEAD_S = 0.1
"""So long before the worker gives up a request its guest is ended, so that the log says how; of a short one, a twentieth."""


def build() -> str:
    """Return the name of the build that is installed; empty: there is none."""
    try:
        found = os.stat(PROGRAM)
    except FileNotFoundError:
        return ""
    return _digest(found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1)
def _digest(_mtime_ns: int, _size: int) -> str:
    with open(PROGRAM, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def compiled_path(module: str, build: str) -> str:
    """Where the compiled file of a component is in the code, next to other bytecode, which no archive can bring."""
    directory, name = os.path.split(module)
    return os.path.join(directory, "__pycache__", f"{name}.http-{build}.cwasm")


def command(module: str, build: str, memory_mb: int, timeout_s: float) -> list[str]:
    """Return the words that run a service of a component."""
    guests_mb = max(memory_mb - HOST_MB, memory_mb // 2)
    time_s = timeout_s - min(AHEAD_S, timeout_s / 20)
    options = ["--memory-mb", str(guests_mb), "--timeout-s", f"{time_s:.3f}"]
    return [IN_SANDBOX, "serve", compiled_path(module, build), *options]
