"""The compiler: a WebAssembly module on standard input, the content of its compiled file on standard output.

    python -m sockd_initscripts.engine.compile [LIMIT BYTES]

A process of its own, to be run without privileges and with limits on time and memory: what it reads is anybody's. Exit
status 0, or 3 and one line on standard error saying why the module could never run.
"""

from __future__ import annotations

import sys
from typing import Protocol

from sockd_initscripts.engine import modules
from sockd_initscripts.errors import BadModule

BAD_MODULE = 3


class Compile(Protocol):
    """Makes a compiled file of a module. Raises: BadModule."""

    def __call__(self, wasm: bytes, *, limit_bytes: int) -> bytes: ...


def main(arguments: list[str], compile_module: Compile) -> int:
    """Compile with this function; returns the exit status."""
    limit_bytes = int(arguments[0]) if arguments else modules.MODULE_LIMIT_BYTES
    wasm = sys.stdin.buffer.read(limit_bytes + 1)
    try:
        compiled = compile_module(wasm, limit_bytes=limit_bytes)
    except BadModule as error:
        print(error.reason, file=sys.stderr)
        return BAD_MODULE
    sys.stdout.buffer.write(compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], modules.compile_module))
