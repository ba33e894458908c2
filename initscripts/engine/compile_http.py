"""The compiler of components for wasi:http: as `compile_function`, by the host that runs them.

    python -m sockd_initscripts.engine.compile_http [LIMIT BYTES]

The worker has checked the length. The interpreter becomes the host, which is confined as it was.
"""

from __future__ import annotations

import os

from sockd_zygote import wasm_host

if __name__ == "__main__":
    os.execv(wasm_host.PROGRAM, [wasm_host.PROGRAM, "compile"])
