"""The module that the handler is in, run from the bytecode that a deploy wrote. Knows nothing of handlers."""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

_bootstrap = sys.modules["_frozen_importlib"]
_external = sys.modules["_frozen_importlib_external"]
CACHE_TAG = sys.implementation.cache_tag
UNCHECKED: bytes = _external.MAGIC_NUMBER + b"\1\0\0\0"
"""How bytecode begins that is valid whatever its source's time (PEP 552): what a deploy writes."""

BUILTIN = frozenset(sys.builtin_module_names)


def bytecode(source: str, path: str) -> bytes:
    """What `load_file` reads, of a module whose source is at `path`."""
    return UNCHECKED + bytes(8) + marshal.dumps(compile(source, path, "exec", dont_inherit=True))


def load_file(name: str, code: str, file_name: str) -> None:
    """Import it from its bytecode, past the finders: an import costs 170 copied pages, this a third of it.

    The module is as an import would leave it. Whatever is unusual is left to the import system: a name that is taken, no
    bytecode, bytecode of another Python.

    Args: name: without dots; code: its directory; file_name: of its source there."""
    if name in sys.modules or name in BUILTIN:
        return
    data = read_file(cached_path(code, name))
    if data[:8] == UNCHECKED:
        execute(name, code, file_name, data)


def cached_path(code: str, name: str) -> str:
    """Where the bytecode of a module in the directory `code` is (PEP 3147)."""
    return f"{code}/__pycache__/{name}.{CACHE_TAG}.pyc"


def execute(name: str, code: str, file_name: str, data: bytes) -> None:
    """Run a module's bytecode as the module `name`. Raises: whatever it raises; then it is not in sys.modules."""
    path = f"{code}/{file_name}"
    module = blanks.pop() if blanks else blank()
    spec = module.__spec__
    spec.name = spec.loader.name = module.__name__ = name
    spec.origin = spec.loader.path = module.__file__ = path
    # Not `cached`, a property: it would be worked out.
    spec._cached = module.__cached__ = cached_path(code, name)
    sys.modules[name] = module
    try:
        exec(marshal.loads(memoryview(data)[16:]), module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise


def blank() -> Any:
    """A module as `importlib` would make it of a file, without a name or a place yet. Made before the fork: what makes one is
    Python, in pages that a child would have to copy (20 of them)."""
    spec = _bootstrap.ModuleSpec("", _external.SourceFileLoader("", ""), origin="")
    spec.has_location = True
    spec.cached = ""
    return _bootstrap.module_from_spec(spec)


blanks: list[Any] = []
"""Modules that were made before they are needed; a sandbox needs one."""


def read_file(path: str) -> bytes:
    """A whole file, without the layers of `open`; empty when it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, os.lseek(fd, 0, os.SEEK_END), 0)  # stat_result has twenty objects
    finally:
        os.close(fd)
