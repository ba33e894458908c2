"""The reference pages are what the code says now."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import reference
from sockd.linux.ways import OLDEST

PAGES = reference.pages()
ROOT = Path(__file__).parents[2]
ERROR_TYPE = re.compile(r"[A-Z][A-Za-z]+\.[A-Z][A-Za-z]+")
"""In a text of its own. Only types of errors look so; those of one word are of classes (`error_type`), or of refusals."""


def test_no_page_is_missing_and_none_is_left_over() -> None:
    assert {path.name for path in reference.PAGES.iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_would_write_it(name: str) -> None:
    written = (reference.PAGES / name).read_text()
    assert written == PAGES[name], "run `make docs`"


@pytest.mark.parametrize("page", ["CHANGELOG.md", "SECURITY.md", "docs/tutorials/images.md", "docs/guide/worker.md"])
def test_each_page_that_names_the_oldest_kernel_names_that_of_the_code(page: str) -> None:
    major, minor = OLDEST
    words = re.findall(r"Linux (\d+\.\d+)\s(?:and|or)\s+later", (ROOT / page).read_text())
    assert words and set(words) == {f"{major}.{minor}"}


def error_types(tree: ast.AST) -> Iterator[str]:
    """The types that a module names: texts that can be nothing else, and values of `error_type` in classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ERROR_TYPE.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "error_type":
                    yield str(ast.literal_eval(each.value))


def test_the_page_of_errors_has_each_type_that_the_code_names() -> None:
    files = [file for folder in ("sockd", "zygote") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in files for name in error_types(ast.parse(file.read_text()))}
    listed = set(re.findall(r"^\| `([^`]+)` \|", PAGES["errors.md"], re.MULTILINE))
    assert {"Sandbox.Timedout", "WebServer.NotReady", "AccessDeniedException"} <= named
    assert named - listed == set()
    assert {"RequestHeaderFieldsTooLarge", "RequestTimeout", "NotHttp"} <= listed
