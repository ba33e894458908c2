"""The Python files of the repository, for tests that check how the code is written.

Owns a cache of texts, which lives as long as the process. Trees are not kept: those of all files are millions of objects.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
"""The fields that hold statements; what is in them is a statement, a handler or a case."""


@functools.cache
def text_of(file: Path) -> str:
    """Return a file's text."""
    return file.read_text()


def parsed(file: Path) -> ast.Module:
    """Return a file's tree."""
    return ast.parse(text_of(file), str(file))


def statements(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk what holds statements, itself first. No expression does, and a file has ten times as many of those."""
    waiting = [scope]
    for node in waiting:
        yield node
        for field in BODIES:
            waiting += getattr(node, field, ())


def docstrings(file: Path) -> list[tuple[int, str]]:
    """Return the line and the text of each docstring, those of modules, classes, functions, fields and constants."""
    return [
        (statement.lineno, " ".join(statement.value.value.split()))
        for statement in statements(parsed(file))
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
