"""Toolchains: which is found, what it says when there is none, and that a build leaves a module or nothing."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path

import pytest

from sockd_initscripts.authoring import toolchain
from sockd_initscripts.authoring.toolchain import BuildFailed, NoToolchain
from sockd_initscripts.engine import modules
from tests.initscripts.builds import build_text

RUST = "#![no_std]\nuse sockd_initscript::boot;\nboot!(run);\nfn run() { let unused = 1; }\n"
SOURCE = '#include "sockd_init.h"\nSOCKD_EXPORT void boot(void) { sockd_exit(7); }\n'


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without toolchains; what is put into the directory is found on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CARGO", raising=False)
    monkeypatch.delenv("RUSTC", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else found(name))
    return tmp_path


def put_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_module_is_built_from_c() -> None:
    info = modules.check_module(build_text(SOURCE))
    assert info.imports == ["exit"]
    assert info.memory_pages == 1
    assert info.size_bytes < 300


def test_the_build_says_what_it_made(tmp_path: Path) -> None:
    source = tmp_path / "my.c"
    source.write_text(SOURCE)
    built = toolchain.build(source, tmp_path / "my.wasm")
    assert built.size_bytes == (tmp_path / "my.wasm").stat().st_size
    assert built.toolchain == toolchain.find("c").name
    assert sorted(os.listdir(tmp_path)) == ["my.c", "my.wasm"]


@pytest.mark.parametrize("language", ["c", "zig", "rust"])
def test_what_the_compiler_refuses_leaves_no_trace(language: str, tmp_path: Path) -> None:
    try:
        toolchain.find(language)
    except NoToolchain as error:
        pytest.skip(error.message)
    source = tmp_path / {"c": "my.c", "zig": "my.zig", "rust": "my.rs"}[language]
    source.write_text("boot oops(;\n")
    output = tmp_path / "my.wasm"
    output.write_bytes(b"as before")
    with pytest.raises(BuildFailed) as failure:
        toolchain.build(source, output)
    assert source.name in failure.value.output
    assert output.read_bytes() == b"as before"
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("language", ["c", "rust"])
def test_what_the_compiler_warns_of_is_reported(language: str, tmp_path: Path) -> None:
    try:
        toolchain.find(language)
    except NoToolchain as error:
        pytest.skip(error.message)
    source = tmp_path / {"c": "my.c", "rust": "my.rs"}[language]
    source.write_text({"c": SOURCE.replace("{", "{ int unused;"), "rust": RUST}[language])
    assert "unused" in toolchain.build(source, tmp_path / "my.wasm").warnings
    source.write_text({"c": SOURCE, "rust": RUST.replace("let unused = 1;", "")}[language])
    assert toolchain.build(source, tmp_path / "my.wasm").warnings == ""


def test_builds_at_once_do_not_mix(tmp_path: Path) -> None:
    sources = [tmp_path / f"{status}.c" for status in range(2)]
    for status, source in enumerate(sources):
        source.write_text(SOURCE.replace("7", f"{status + 1000}"))
    threads = [
        threading.Thread(target=toolchain.build, args=(source, source.with_suffix(".wasm"))) for source in sources
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    made = [source.with_suffix(".wasm").read_bytes() for source in sources]
    assert made[0] != made[1]


def test_a_file_of_another_language_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "my.go").touch()
    for name, words in [("my.go", "neither C"), ("no.c", "not there")]:
        with pytest.raises(BuildFailed, match=words):
            toolchain.build(tmp_path / name, tmp_path / "my.wasm")


@pytest.mark.parametrize(("language", "fix"), [("c", "pip install ziglang"), ("rust", "rustup target add")])
def test_without_a_toolchain_the_error_says_what_to_install(language: str, fix: str, bare: Path) -> None:
    with pytest.raises(NoToolchain) as failure:
        toolchain.find(language)
    assert fix in failure.value.fix


def test_clang_is_taken_where_it_can_link_wasm(bare: Path) -> None:
    put_program(bare / "clang", "exit 0")
    with pytest.raises(NoToolchain, match="wasm-ld"):
        toolchain.find("c")
    put_program(bare / "wasm-ld", "exit 0")
    assert toolchain.find("c").command[:2] == (str(bare / "clang"), "--target=wasm32")


def test_rust_is_taken_with_the_target_or_with_sources(bare: Path) -> None:
    put_program(bare / "cargo", "exit 0")
    put_program(bare / "rustc", f'case "$2" in target-libdir) echo {bare}/lib;; sysroot) echo {bare}/root;; esac')
    with pytest.raises(NoToolchain, match="neither the target"):
        toolchain.find("rust")
    core = bare / "root/lib/rustlib/src/rust/library/core/src/lib.rs"
    core.parent.mkdir(parents=True)
    core.touch()
    assert "-Zbuild-std=core,alloc" in toolchain.find("rust").command
    (bare / "lib").mkdir()
    (bare / "lib/libcore-0.rlib").touch()
    ready = toolchain.find("rust")
    assert "-Zbuild-std=core,alloc" not in ready.command
    assert "--offline" in ready.command
