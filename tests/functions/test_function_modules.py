"""The compiled modules of functions: made once for their code, again where they are lost, and refused in words that name them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.base.config import WasmConfig
from sockd.base.errors import BadWasm, ModuleLost
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.modules import function_modules, module_compiler
from sockd.functions.modules.function_modules import FunctionModules, compiled_file, own_version
from sockd.functions.modules.module_compiler import ModuleCompiler
from sockd.functions.registry.function_record import FunctionRecord
from sockd.starts.packages.distribution import Closure, Distribution
from sockd_zygote import wasm_host
from sockd_zygote.handlers.wasm.runtime import PACKAGE
from tests.support.jail import jail_at
from tests.support.wasm_modules import COMMAND

pytestmark = [pytest.mark.anyio, pytest.mark.root]

UID = 0x1FFFFFFE
MODULE = "fn.wasm"


def closure_with(version: str) -> Closure:
    """The packages of a function that was deployed with this version of the runtime."""
    url = "https://index.invalid/wasmtime.whl"
    return Closure.of([Distribution(name=PACKAGE, version=version, digest="0" * 64, url=url)])


def record_of(closure: Closure) -> FunctionRecord:
    settings = FunctionConfig(runtime="wasm", handler=MODULE).to_json()
    return FunctionRecord(
        name="f",
        version=1,
        digest="0" * 64,
        code_bytes=1,
        handler=MODULE,
        config=settings,
        closure=closure.to_json().decode(),
        initscript="",
        published_at=0,
        created_at=0,
    )


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Code with a module."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / MODULE).write_bytes(COMMAND)
    return tmp_path / "code"


@pytest.fixture
async def compiler(tmp_path: Path) -> AsyncIterator[ModuleCompiler]:
    async with jail_at(tmp_path / "engine") as jail:
        yield ModuleCompiler(jail, UID)


async def test_a_module_that_is_lost_is_compiled_again(code: Path, compiler: ModuleCompiler) -> None:
    modules, closure = FunctionModules(compiler, WasmConfig()), closure_with(own_version())
    said: list[str] = []
    for _ in range(2):
        await modules.compile(code, MODULE, closure, said.append)
    assert said == ["compiling fn.wasm"]
    file, record = compiled_file(code, MODULE, closure), record_of(closure)
    compiled = file.read_bytes()
    function_modules.check(record, code, closure)
    file.unlink()
    with pytest.raises(ModuleLost):
        function_modules.check(record, code, closure)
    await modules.restore(record, code, closure)
    assert file.read_bytes() == compiled


async def test_what_another_runtime_is_to_load_is_not_compiled(code: Path, compiler: ModuleCompiler) -> None:
    closure = closure_with("49.0.0")
    with pytest.raises(ModuleLost, match="another wasmtime than the function"):
        await FunctionModules(compiler, WasmConfig()).restore(record_of(closure), code, closure)
    python = replace(record_of(closure), config=FunctionConfig().to_json())
    await FunctionModules(compiler, WasmConfig()).restore(python, code, closure)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_module_mb": 0}, "is longer than 0 bytes"),
        ({"max_compiled_mb": 0}, "fn.wasm compiles to more than 0 MB"),
        ({"compile_deadline_s": 0.001}, "fn.wasm takes more than 0.001 s to compile"),
        ({"compile_memory_mb": 8}, "fn.wasm takes more than 8 MB to compile"),
    ],
)
async def test_a_compile_is_bounded(
    code: Path, compiler: ModuleCompiler, settings: dict[str, float], words: str
) -> None:
    closure = closure_with(own_version())
    with pytest.raises(Exception, match=words):
        await FunctionModules(compiler, WasmConfig(**settings)).compile(code, MODULE, closure, print)  # type: ignore[arg-type]
    assert not compiled_file(code, MODULE, closure).exists()


async def test_without_the_host_of_wasi_http_a_component_for_it_is_refused(
    code: Path, compiler: ModuleCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasm_host, "PROGRAM", str(tmp_path / "none"))
    with pytest.raises(BadWasm, match="make wasm-host"):
        await FunctionModules(compiler, WasmConfig()).compile_http(code, MODULE, print)


async def test_a_worker_that_cannot_compile_says_why(compiler: ModuleCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadWasm, match=r"initscripts\.enabled is false"):
        FunctionModules(None, WasmConfig()).requirement()
    monkeypatch.setattr(module_compiler, "missing", lambda: ["wasmtime"])
    with pytest.raises(BadWasm, match=r"wasmtime not installed \(.* -m pip install "):
        FunctionModules(compiler, WasmConfig()).requirement()
