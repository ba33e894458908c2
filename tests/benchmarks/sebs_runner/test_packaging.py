"""A bench as a directory that can be deployed."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sebs_runner.benches import FFMPEG, find
from benchmarks.sebs_runner.errors import NotPossible, SuiteChanged
from benchmarks.sebs_runner.packaging import Arm, Settings, build
from benchmarks.sebs_runner.suite import Suite
from tests.benchmarks.sebs_runner.conftest import FUNCTION, THUMBNAILER


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_the_layout_is_that_of_sebs(suite: Suite, tmp_path: Path) -> None:
    build(find("210"), suite, Settings(arm=Arm.OWN, python=(3, 12)), tmp_path / "package")
    assert tree(tmp_path / "package") == {
        "handler.py",
        "requirements.txt",
        "sockd.toml",
        "function/function.py",
        "function/storage.py",
        "function/templates/page.html",
        "function/resources/mark.png",
    }
    assert (tmp_path / "package" / "function" / "function.py").read_text() == FUNCTION
    assert "pillow==10.3.0" in (tmp_path / "package" / "requirements.txt").read_text()


def test_with_our_shim_sebs_own_wrapper_stays_out(suite: Suite, tmp_path: Path) -> None:
    settings = Settings(arm=Arm.SHIM, initscript=b"\0asm", env={"KEY": 'a "quoted" value'}, concurrency=7)
    build(find("210"), suite, settings, tmp_path / "package")
    assert "function/storage.py" not in tree(tmp_path / "package")
    assert (tmp_path / "package" / "init.wasm").read_bytes() == b"\0asm"
    keys = tomllib.loads((tmp_path / "package" / "sockd.toml").read_text())
    assert keys == {
        "handler": "handler:handler",
        "memory_mb": 256,
        "timeout_s": 60.0,
        "concurrency": 7,
        "storage": "sockd",
        "env": {"KEY": 'a "quoted" value'},
        "initscript": {"wasm": "init.wasm"},
    }


def test_the_handler_is_the_same_for_all_arms(suite: Suite, tmp_path: Path) -> None:
    for arm in Arm:
        build(find("210"), suite, Settings(arm=arm), tmp_path / arm.value)
    assert len({(tmp_path / arm.value / "handler.py").read_bytes() for arm in Arm}) == 1


def test_an_initscript_works_for_the_suites_own_storage(suite: Suite, tmp_path: Path) -> None:
    build(find("210"), suite, Settings(arm=Arm.OWN, initscript=b"\0asm"), tmp_path / "package")
    settings = tomllib.loads((tmp_path / "package" / "sockd.toml").read_text())
    assert settings["initscript"] == {"wasm": "init.wasm"} and "storage" not in settings
    assert {"init.wasm", "function/storage.py"} <= tree(tmp_path / "package")


def test_a_changed_function_is_not_packed(suite: Suite, tmp_path: Path) -> None:
    (suite.path.parent / THUMBNAILER / "python" / "function.py").write_text("def handler(event): ...\n")
    with pytest.raises(SuiteChanged):
        build(find("210"), suite, Settings(), tmp_path / "package")


@pytest.mark.parametrize(("name", "package"), [("imgrec", "onnxruntime"), ("imgrec-wasm", "wasmtime")])
def test_our_own_benches_are_packed_alike(suite: Suite, tmp_path: Path, name: str, package: str) -> None:
    build(find(name), suite, Settings(), tmp_path / "package")
    expected = {"handler.py", "function/function.py", "function/network.py", "function/storage.py"}
    assert expected <= tree(tmp_path / "package")
    assert f"import {package}\n" in (tmp_path / "package" / "function" / "network.py").read_text()
    assert f"\n{package}==" in (tmp_path / "package" / "requirements.txt").read_text()


def test_with_a_snapshot_the_init_imports_the_function(suite: Suite, tmp_path: Path) -> None:
    build(find("imgrec"), suite, Settings(snapshot=True), tmp_path / "package")
    keys = tomllib.loads((tmp_path / "package" / "sockd.toml").read_text())
    assert (keys["handler"], keys["snapshot"]) == ("preloaded:handler", True)
    assert {"handler.py", "preloaded.py", "function/function.py"} <= tree(tmp_path / "package")


def test_a_bench_that_calls_ffmpeg_gets_it_next_to_it(suite: Suite, tmp_path: Path) -> None:
    bench = replace(find("210"), needs=frozenset({FFMPEG}))
    with pytest.raises(NotPossible, match="ffmpeg"):
        build(bench, suite, Settings(), tmp_path / "without")
    (tmp_path / "binary").write_bytes(b"elf")
    build(bench, suite, Settings(ffmpeg=tmp_path / "binary"), tmp_path / "package")
    put = tmp_path / "package" / "function" / "ffmpeg" / "ffmpeg"
    assert put.read_bytes() == b"elf" and put.stat().st_mode & 0o111
