"""Initscripts for benches: the project's examples, compiled from source once and kept in the cache."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from benchmarks.sebs_runner.benches import Bench
from benchmarks.sebs_runner.errors import NotPossible
from sockd_initscripts.authoring import toolchain


def initscript(bench: Bench, cache: Path) -> bytes:
    """The module that issues a bench's reads; one that does nothing for a bench without any. Raises: NotPossible."""
    source = toolchain.EXAMPLES / bench.initscript / f"{bench.initscript}.c"
    if not source.is_file():
        raise NotPossible(f"the source of {bench.id}'s initscript is in the source checkout, and this is none")
    sources = [source, *sorted((toolchain.SDK / "c").glob("*.h"))]
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    module = cache / "initscripts" / f"{bench.initscript}-{digest}.wasm"
    if not module.is_file():
        module.parent.mkdir(parents=True, exist_ok=True)
        try:
            toolchain.build(source, module)
        except toolchain.NoToolchain as error:
            raise NotPossible(
                f"the initscript of {bench.id} cannot be compiled: {error.message}", fix=error.fix
            ) from None
        except toolchain.BuildFailed as error:
            raise NotPossible(f"the initscript of {bench.id} cannot be compiled: {error} {error.output}") from None
    return module.read_bytes()
