"""The store of compiled initscripts: what is made once, by whom it may be read, and what is left when nobody needs it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.base.config import InitscriptsConfig
from sockd.base.errors import BadInitscript
from sockd.functions.modules import initscript_store, module_compiler
from sockd.functions.modules.initscript_store import InitscriptStore, compiler_key
from sockd.functions.modules.module_compiler import ModuleCompiler
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from tests.initscripts.guests import module
from tests.support.jail import jail_at

pytestmark = [pytest.mark.anyio, pytest.mark.root]

UID = 0x1FFFFFFE


class Harness:
    """A store, and the tree that its compiler stands on."""

    def __init__(self, state: Path, jail: Jail) -> None:
        self.state = state
        self.jail = jail
        (state / "tmp").mkdir()
        self.store = self.open()

    def open(self, **settings: object) -> InitscriptStore:
        """As a daemon would, on the same directory."""
        config = InitscriptsConfig(**settings)  # type: ignore[arg-type]
        compiler = ModuleCompiler(self.jail, UID)
        store = InitscriptStore(self.state / "initscripts", self.state / "tmp", compiler, config)
        store.recover()
        return store

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.state / "initscripts"))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with jail_at(tmp_path / "engine") as jail:
        yield Harness(tmp_path, jail)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each process that is started."""
    started: list[str] = []
    start = ConfinedProcess.start

    async def counting(*arguments: object, **more: object) -> ConfinedProcess:
        started.append("started")
        return await start(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfinedProcess, "start", counting)
    return started


async def test_a_module_is_compiled_once_and_found_by_its_digest(harness: Harness, compiles: list[str]) -> None:
    wasm = module("")
    digest = await harness.store.publish(wasm)
    assert digest == hashlib.sha256(wasm).hexdigest()
    assert await harness.store.publish(wasm) == digest and len(compiles) == 1
    assert harness.store.size_bytes(digest) == len(wasm)
    fd = harness.store.open(digest)
    assert fd is not None
    os.close(fd)
    assert harness.store.open("0" * 64) is None
    assert harness.files == [f"{digest}-{compiler_key()}.cwasm", f"{digest}.wasm"]
    assert os.listdir(harness.state / "tmp") == []


async def test_only_root_finds_the_files_but_one_that_is_given_one_may_open_it_again(harness: Harness) -> None:
    """The engine, another user, opens it through /proc/self/fd."""
    digest = await harness.store.publish(module(""))
    directory = harness.state / "initscripts"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in harness.files} == {0o444}
    directory.chmod(0o755)
    assert stat.S_IMODE(harness.open()._root.stat().st_mode) == 0o700
    assert digest


@pytest.mark.parametrize(
    ("wasm", "words"),
    [(b"\0asm\1\0\0\0xx", "malformed"), (b"#!/bin/sh", "not a WebAssembly binary"), (bytes(2 << 20), "the limit is")],
)
async def test_what_can_never_run_is_refused_and_leaves_nothing(harness: Harness, wasm: bytes, words: str) -> None:
    with pytest.raises(BadInitscript, match=words):
        await harness.store.publish(wasm)
    assert harness.files == [] and os.listdir(harness.state / "tmp") == []


async def test_a_compile_is_bounded_in_time_and_in_memory(harness: Harness) -> None:
    with pytest.raises(BadInitscript, match=r"takes more than 0\.001 s"):
        await harness.open(compile_deadline_s=0.001).publish(module(""))
    with pytest.raises(BadInitscript, match="takes more than 8 MB"):
        await harness.open(compile_memory_mb=8).publish(module(""))
    assert harness.files == []


async def test_another_compiler_s_files_are_made_anew(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = await harness.store.publish(module(""))
    old = f"{digest}-{compiler_key()}.cwasm"
    monkeypatch.setattr(initscript_store, "compiler_key", lambda: "f" * 16)
    assert harness.store.open(digest) is None
    await harness.store.ensure(digest)
    assert harness.files == sorted([old, f"{digest}-{'f' * 16}.cwasm", f"{digest}.wasm"])
    harness.store.gc({digest})
    assert harness.files == [f"{digest}-{'f' * 16}.cwasm", f"{digest}.wasm"]


async def test_what_no_one_needs_goes(harness: Harness) -> None:
    kept, gone = await harness.store.publish(module("")), await harness.store.publish(module("nop"))
    (harness.state / "initscripts" / "stray").touch()
    harness.store.gc({kept})
    assert harness.files == [f"{kept}-{compiler_key()}.cwasm", f"{kept}.wasm"] and gone != kept
    (harness.state / "tmp" / "initscript-half").touch()
    harness.open()
    assert os.listdir(harness.state / "tmp") == []


async def test_a_worker_without_the_packages_says_what_to_install(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_compiler, "missing", lambda: ["wasmtime", "grpc"])
    with pytest.raises(BadInitscript, match=r"wasmtime, grpc not installed \(.* -m pip install .*wasmtime"):
        await harness.store.publish(module(""))
