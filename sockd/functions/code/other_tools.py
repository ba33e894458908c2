"""Dependencies that other tools declare in formats that sockd does not read, and the commands that convert them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

POETRY = "poetry export -f requirements.txt -o requirements.txt"
FILES = {
    "poetry.lock": POETRY,
    "pdm.lock": "pdm export --prod -o requirements.txt",
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
    "Pipfile": "pipenv lock && pipenv requirements --hash > requirements.txt",
}
"""Files of other tools, and the command that writes what they declare as a requirements.txt."""


def poetry_dependencies(pyproject: Mapping[str, Any]) -> list[str]:
    """Return the names in [tool.poetry.dependencies]."""
    tool = pyproject.get("tool")
    poetry = tool.get("poetry") if isinstance(tool, Mapping) else None
    dependencies = poetry.get("dependencies") if isinstance(poetry, Mapping) else None
    return [name for name in dependencies if name != "python"] if isinstance(dependencies, Mapping) else []


def unread(code: Path) -> tuple[str, str]:
    """Return the first file of another tool that declares dependencies, and the command that converts it; or empty texts."""
    return next(((file, FILES[file]) for file in FILES if (code / file).is_file()), ("", ""))
