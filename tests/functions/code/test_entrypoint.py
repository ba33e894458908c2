"""Which callable is the handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.entrypoint import CONVENTIONS, entry_point, parse_handler


def tree(directory: Path, *files: str) -> Path:
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text("")
    return directory


@pytest.mark.parametrize(("file", "expected"), CONVENTIONS)
def test_each_convention_is_known_by_its_file(tmp_path: Path, file: str, expected: str) -> None:
    assert entry_point(tree(tmp_path, file, "other.py"), None) == expected


def test_of_two_conventions_the_first_in_order_decides(tmp_path: Path) -> None:
    for file, expected in reversed(CONVENTIONS):
        assert entry_point(tree(tmp_path, file), None) == expected


def test_an_explicit_handler_wins_and_needs_no_file(tmp_path: Path) -> None:
    assert entry_point(tree(tmp_path, "lambda_function.py"), "vendored.app:main") == "vendored.app:main"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("f:f", "f:f"),
        ("app.handler", "app:handler"),
        ("pkg.app.handler", "pkg.app:handler"),
        ("pkg.app:handler", "pkg.app:handler"),
        ("pkg/app.handler", "pkg.app:handler"),
        ("function/function.py:handler", "function.function:handler"),
        ("my-function.handler", "my-function:handler"),
        ("f.py:f", "f:f"),
    ],
)
def test_handlers_are_written_in_the_ways_people_write_them(written: str, meant: str) -> None:
    assert parse_handler(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "",
        "f",
        "f:",
        ":f",
        "f:f:f",
        "../f.f",
        "/f.f",
        "a..b",
        "f:1",
        "f.py.f",
        "a b:c",
        "f:f\n",
        "f\0:f",
        "m:" + "f" * 127,
    ],
)
def test_what_names_no_callable_is_refused(written: str) -> None:
    with pytest.raises(BadFunctionConfig, match="module:function"):
        parse_handler(written)


def test_without_any_handler_the_error_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(BadFunctionConfig) as caught:
        entry_point(tree(tmp_path, "other.py"), None)
    for file, _ in CONVENTIONS:
        assert file in caught.value.message


def test_a_directory_or_link_of_the_right_name_is_no_convention(tmp_path: Path) -> None:
    (tmp_path / "handler.py").mkdir()
    (tmp_path / "main.py").symlink_to("/etc/passwd")
    (tmp_path / "function").write_text("")
    with pytest.raises(BadFunctionConfig):
        entry_point(tmp_path, None)


def test_a_webassembly_module_is_the_only_one_at_the_top_or_the_one_that_is_named(tmp_path: Path) -> None:
    assert entry_point(tree(tmp_path, "fn.wasm", "handler.py", "build/other.wasm"), None, "wasm") == "fn.wasm"
    assert entry_point(tmp_path, "build/other.wasm", "wasm") == "build/other.wasm"
    with pytest.raises(BadFunctionConfig, match=r"there are fn\.wasm, init\.wasm: name yours"):
        entry_point(tree(tmp_path, "init.wasm"), None, "wasm")


@pytest.mark.parametrize(
    "written", ["handler.py", "gone.wasm", "../fn.wasm", "/fn.wasm", "./fn.wasm", "fn:handler", ""]
)
def test_the_handler_of_a_webassembly_function_is_a_file_of_the_code(tmp_path: Path, written: str) -> None:
    with pytest.raises(BadFunctionConfig, match=r"must be a file of the code, FILE\.wasm"):
        entry_point(tree(tmp_path, "fn.wasm", "handler.py"), written, "wasm")
