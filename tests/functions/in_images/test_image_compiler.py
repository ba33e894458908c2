"""What compiling sources of an image gives, where the worker has trouble of its own. The sandbox is replaced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from sockd.base.errors import NoCapacity, SandboxFailed, SockdError, StorageFull
from sockd.functions.in_images import image_compiler
from sockd.functions.in_images.image_compiler import ImageCompiler
from sockd.functions.in_images.image_probe import Ask
from sockd.images.store.import_wire import Compiled, Uncompiled
from sockd.images.store.missing_bytecode import CompileJob

SOURCES = Uncompiled((), (CompileJob(python="/bin/python3", cache_tag="cpython-312", batches=(("/a.py",),)),))


def compiled(monkeypatch: pytest.MonkeyPatch, answers: str, failure: SockdError | None = None) -> Compiled:
    """Args: answers: the file for answers; failure: of the sandbox's start."""

    @asynccontextmanager
    async def probing(*arguments: Any, **options: Any) -> AsyncIterator[Ask]:
        if failure is not None:
            raise failure

        async def ask(event: bytes) -> bytes:
            return b"code"

        yield ask

    monkeypatch.setattr(image_compiler, "probing", probing)
    nothing = cast(Any, None)
    compiler = ImageCompiler(nothing, nothing, nothing, timeout_s=10.0, mounting=nothing)
    fd = os.open(answers, os.O_RDWR)
    try:
        return asyncio.run(compiler.compile(Path("/nothing"), SOURCES, fd, lambda text: None))
    finally:
        os.close(fd)


def test_a_full_disk_fails_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageFull):
        compiled(monkeypatch, "/dev/full")


def test_a_worker_without_memory_fails_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoCapacity, match="later"):
        compiled(monkeypatch, "/dev/null", NoCapacity("later"))


def test_what_is_the_images_own_fault_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch, "/dev/null", SandboxFailed("it ends")).reason == "it ends"
    assert compiled(monkeypatch, "/dev/null").reason == ""
