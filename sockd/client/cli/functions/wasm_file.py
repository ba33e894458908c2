"""A WebAssembly file that is deployed by itself: whether it is a function or an initscript, and the archive of a function."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

MODULE_HEAD, COMPONENT_LAYER = b"\0asm", b"\1\0"
START = b"\6_start\0"
"""As the exports of a module have it: the name's length, the name, and that it is a function."""


def is_function(wasm: bytes) -> bool:
    """Whether these are a component or a WASI command; what is neither is an initscript, or is refused as one."""
    is_component = wasm[:4] == MODULE_HEAD and wasm[6:8] == COMPONENT_LAYER
    return is_component or START in wasm


def packed(source: Path, wasm: bytes) -> bytes:
    """Return the archive of a function that is this file alone."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr(source.name, wasm)
    return archive.getvalue()
