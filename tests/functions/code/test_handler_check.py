"""Which handlers a deploy refuses, and which it leaves to the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.handler_check import check_handler


@pytest.mark.parametrize(
    ("file", "text", "handler", "words"),
    [
        ("f.py", "def f(event)\n  return 1\n", "f:f", "line 1: SyntaxError: expected ':'"),
        ("f.py", "\n\treturn 1\n        x", "f:f", "line 2: IndentationError"),
        ("f.py", "return 1", "f:f", "SyntaxError: 'return' outside function"),
        ("f.py", "def handler(event): return 1", "f:f", "has no f and no app"),
        ("app.py", "def go(event): return 1", "app:app", "has no app and no lambda_handler and no handler"),
        (
            "main.py",
            "def handle(event): return 'handler'",
            "main:handler",
            "has no handler and no app; name another in sockd.toml",
        ),
        ("a/b.py", "x = 1", "a.b:go", "/var/task/a/b.py has no go"),
        ("a/b/__init__.py", "x = 1", "a.b:go", "/var/task/a/b/__init__.py has no go"),
        ("other.py", "", "main:handler", "the code has no main.py"),
    ],
)
def test_what_cannot_work_is_refused_with_the_place(
    tmp_path: Path, file: str, text: str, handler: str, words: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(BadFunctionConfig) as refused:
        check_handler(tmp_path, handler, has_packages=False)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("file", "handler", "found"),
    [
        ("f.py", "f:f", "f:app"),
        ("app.py", "app:f", "app:app"),  # OL_ENTRY_FILE
        ("main.py", "main:handler", "main:app"),
        ("handler.py", "handler:handler", "handler:app"),
    ],
)
def test_an_app_may_stand_for_the_handler(tmp_path: Path, file: str, handler: str, found: str) -> None:
    (tmp_path / file).write_text("app = print")
    assert check_handler(tmp_path, handler, has_packages=False) == found


def test_an_app_does_not_stand_for_any_other_handler(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("app = print")
    with pytest.raises(BadFunctionConfig, match="has no handler"):
        check_handler(tmp_path, "shop:handler", has_packages=False)


@pytest.mark.parametrize(
    "text",
    [
        "def handler(event): pass",
        "app = make()",
        "async def handler(event): pass",
        "from x import handler",
        "from x import y as handler",
        "from x import *",
        "import handler",
        "if 1:\n    handler = print",
        "for handler in []: pass",
        "def make():\n    global handler\n    handler = 1",
        "globals()['hand' + 'ler'] = print",
        "def __getattr__(name): return print",
        "import sys\nsetattr(sys.modules[__name__], 'handler', print)",
    ],
)
def test_what_may_work_is_left_to_the_sandbox(tmp_path: Path, text: str) -> None:
    (tmp_path / "main.py").write_text(text)
    check_handler(tmp_path, "main:handler", has_packages=False)


@pytest.mark.parametrize(
    ("file", "handler", "text", "found"),
    [
        ("main.py", "main:handler", "app = print", "main:app"),
        ("main.py", "main:handler", "app = handler = print", "main:handler"),
        ("main.py", "main:handler", "from mine import *\napp = print", "main:handler"),
        ("f.py", "f:f", "def app(environ, start_response): return []", "f:app"),
        ("other.py", "other:app", "app = print", "other:app"),
        ("app.py", "app:app", "def lambda_handler(event, context): return {}", "app:lambda_handler"),
        ("app.py", "app:app", "def handler(event, context): return {}", "app:handler"),
        ("app.py", "app:app", "app = handler = print", "app:app"),
    ],
)
def test_a_web_app_in_the_place_of_a_handler_is_named(
    tmp_path: Path, file: str, handler: str, text: str, found: str
) -> None:
    (tmp_path / file).write_text(text)
    assert check_handler(tmp_path, handler, has_packages=False) == found


@pytest.mark.parametrize("handler", ["flask:Flask", "http.server:handler", "compiled:go"])
def test_a_module_may_come_from_elsewhere(tmp_path: Path, handler: str) -> None:
    (tmp_path / "compiled.cpython-311-x86_64-linux-gnu.so").touch()
    check_handler(tmp_path, handler, has_packages=handler == "flask:Flask")


def test_nothing_of_the_source_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "main.py").write_text(f"open({str(ran)!r}, 'w')\ndef handler(event): pass")
    check_handler(tmp_path, "main:handler", has_packages=False)
    assert not ran.exists()
