"""Modules: what is refused and why, and that a compiled file is believed only if it is whole and ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wasmtime

from sockd_initscripts.engine import abi, modules
from sockd_initscripts.engine.compiled_file import open_seal
from sockd_initscripts.engine.guest import Machine
from sockd_initscripts.engine.modules import ModuleFile
from sockd_initscripts.errors import BadModule
from tests.initscripts.guests import module, wasm

GOOD = module("")
ENTRY = '(func (export "boot"))'
MEMORY = '(memory (export "memory") 1)'


def test_a_module_that_is_fine() -> None:
    info = modules.check_module(GOOD)
    assert info.imports == list(abi.FUNCTIONS)
    assert info.exports == ["memory", "boot"]
    assert (info.size_bytes, info.memory_pages) == (len(GOOD), 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a WebAssembly binary"),
        (b"(module)", "not a WebAssembly binary"),
        (b"\0asm\1\0\0\0rubbish", "malformed"),
        (GOOD[:-10], "malformed"),
        (wasm("(module)"), "no memory is exported as 'memory'"),
        (wasm(f"(module {MEMORY})"), "no function () -> () is exported as 'boot'"),
        (wasm(f'(module {MEMORY} (func (export "boot") (param i32)))'), "no function () -> ()"),
        (wasm(f'(module {MEMORY} (global (export "boot") i32 (i32.const 0)))'), "no function () -> ()"),
        (wasm(f'(module {ENTRY} (func (export "memory")))'), "no memory"),
        (wasm(f'(module (import "env" "puts" (func)) {MEMORY} {ENTRY})'), "unknown import env.puts"),
        (wasm(f'(module (import "sockd_v1" "fork" (func)) {MEMORY} {ENTRY})'), "unknown import sockd_v1.fork"),
        (
            wasm(f'(module (import "wasi_snapshot_preview1" "fd_write" (func)) {MEMORY} {ENTRY})'),
            "unknown import wasi_snapshot_preview1.fd_write",
        ),
        (
            wasm(f'(module (import "sockd_v1" "exit" (func (param i64))) {MEMORY} {ENTRY})'),
            "import sockd_v1.exit is not (param i32) (result )",
        ),
        (wasm(f'(module (import "sockd_v1" "exit" (global i32)) {MEMORY} {ENTRY})'), "import sockd_v1.exit is not"),
        (wasm(f"(module {MEMORY} {ENTRY} (func $early) (start $early))"), "a start function"),
        (wasm(f'(module (memory i64 1) (memory (export "memory") 1) {ENTRY})'), "malformed"),
        (wasm(f'(module (memory (export "memory") 1 1 shared) {ENTRY})'), "malformed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_module_that_could_never_run(content: bytes, reason: str) -> None:
    with pytest.raises(BadModule, match="^" + "".join(f"[{c}]" if c in "()[]" else c for c in reason)):
        modules.check_module(content)
    with pytest.raises(BadModule):
        modules.compile_module(content)


def test_sections_are_found_whatever_their_sizes() -> None:
    assert modules.sections(module("", text="x" * 9000)) == [1, 2, 3, 5, 6, 7, 10, 11, 0]
    assert modules.sections(wasm("(module)")) == []


def test_a_module_that_is_too_large() -> None:
    with pytest.raises(BadModule, match="100 are allowed"):
        modules.check_module(GOOD, limit_bytes=100)


def test_the_compiler_is_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "sockd_initscripts.engine.compile"]
    made = subprocess.run(command, input=GOOD, capture_output=True, timeout=15)
    assert (made.returncode, made.stderr) == (0, b"")
    open_seal(made.stdout)
    refused = subprocess.run([*command, "100"], input=GOOD, capture_output=True, timeout=15)
    assert (refused.returncode, refused.stdout) == (3, b"")
    assert refused.stderr == b"the module has 101 bytes, 100 are allowed\n"


def test_a_compiled_file_says_how_much_memory_its_module_begins_with() -> None:
    assert open_seal(modules.compile_module(GOOD)) == 1


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 1000])
def test_what_is_no_compiled_file_says_nothing(content: bytes) -> None:
    with pytest.raises(BadModule):
        open_seal(content)


def test_a_compiled_file_is_named_after_all_that_it_depends_on() -> None:
    names = {modules.cache_name(GOOD), modules.cache_name(module("(nop)"))}
    assert len(names) == 2
    assert all(modules.WASMTIME_VERSION in name and name.endswith(".cwasm") for name in names)


def test_a_compiled_file_is_loaded_from_a_path_or_an_fd_once(tmp_path: Path) -> None:
    path = tmp_path / "x.cwasm"
    path.write_bytes(modules.compile_module(GOOD))
    machine = Machine()
    file = ModuleFile(path)
    assert not file.is_loaded
    assert file.load(machine.linker) is file.load(machine.linker)
    file.unload()
    assert not file.is_loaded
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    path.unlink()
    with pytest.raises(BadModule):
        file.load(machine.linker)
    file = ModuleFile(fd)
    assert file.load(machine.linker).memory_bytes == 65536
    file.close()
    with pytest.raises(BadModule):
        file.load(machine.linker)


def test_the_compilers_and_the_engines_settings_are_alike() -> None:
    compiled = modules.compile_module(GOOD)
    wasmtime.Module.deserialize(modules.machine(), compiled)
    with pytest.raises(wasmtime.WasmtimeError):
        wasmtime.Module.deserialize(wasmtime.Engine(), compiled)
