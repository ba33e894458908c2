"""The modules of the standard library that one Zygote imports, without packages, and the functions that use it.

The list has the modules that handlers import most and that take longest: 60-130 ms together. It is short, because each start
from that Zygote copies its page tables; a function that imports none of them is forked from the root Zygote. Modules that start
threads, open descriptors or read the machine when they are imported (multiprocessing, webbrowser) are not on it."""

from __future__ import annotations

import ast
from pathlib import Path

KEY = "standard-library"
"""Stands for the Zygote's packages. No distribution has this key, which is without a version: no closure has it."""
MODULES = (
    *("asyncio", "base64", "collections", "contextlib", "csv", "dataclasses", "datetime", "decimal", "email.message"),
    *("email.mime.multipart", "email.mime.text", "email.parser", "enum", "functools", "gzip", "hashlib", "hmac"),
    *("html", "http.client", "io", "json", "logging", "math", "pathlib", "random", "re", "secrets", "shutil"),
    *("sqlite3", "ssl", "statistics", "string", "subprocess", "tempfile", "threading", "typing", "urllib.parse"),
    *("urllib.request", "uuid", "xml.etree.ElementTree", "zipfile", "zoneinfo", "concurrent.futures"),
)
CHEAP = frozenset({"collections", "contextlib", "enum", "functools", "io", "json", "math", "re", "string"})
"""Of these the root has all or nearly all: a function that imports only such is forked from it."""
MAX_SOURCE_BYTES = 1 << 20
_COSTLY = frozenset(name.partition(".")[0] for name in MODULES) - CHEAP


def is_needed_by(source: Path) -> bool:
    """Whether a source file imports one of them, wherever it does, or what serves it does: an async handler needs asyncio, a web
    app inspect and urllib, a decorated handler inspect. A guess: it decides about speed, and about nothing else."""
    try:
        with open(source, "rb") as file:
            text = file.read(MAX_SOURCE_BYTES + 1)
        tree = ast.parse(text) if len(text) <= MAX_SOURCE_BYTES else ast.Module([], [])
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    if any(isinstance(node, ast.FunctionDef) and node.decorator_list for node in tree.body):
        return True
    return any(not _COSTLY.isdisjoint(_roots(node)) or _is_served_with_some(node) for node in ast.walk(tree))


def _is_served_with_some(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return any(argument.arg == "start_response" for argument in node.args.args)
    return isinstance(node, ast.AsyncFunctionDef)


def _roots(node: ast.AST) -> list[str]:
    """The top-level names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [(node.module or "").partition(".")[0]]
    return []
