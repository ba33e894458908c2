"""The programs of the answer cases, as `own_code.toml`, `projects.toml` and `pairs.toml` list them, as functions to be deployed.

A program is the text at the top of an f.py and an expression that its handler answers. The handler answers the state of the
interpreter, too (`state_report.py`), which it imports after the expression was evaluated.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STATE_REPORT = "state_report.py"
HANDLER = """{code}

def f(event):
    import sys
    answer, names = _answer(), sorted(sys.modules)
    import state_report
    return {{"answer": answer, "state": state_report.report(names)}}

def _answer():
    try:
        return repr({answer})
    except BaseException as error:
        return f"{{type(error).__name__}}: {{error}}"
"""


@dataclass(frozen=True)
class Program:
    """One function: its requirements, the code of its top level, and what it answers."""

    name: str
    requirements: tuple[str, ...]
    code: str
    answer: str
    own: str | None = None
    """What a start of its own answers, where the table says so."""
    pair: str = ""
    """The name of the pair that it is of."""
    beside: dict[str, str] = field(default_factory=dict)
    """Files beside its code, by path."""
    quick: bool = False
    """Whether it is in the default set."""
    learned: bool = False
    """Whether it must be served by a Zygote with all of its packages: its top level is imports alone, or begins with them."""

    def files(self) -> dict[str, str]:
        """Return its source directory, by path."""
        return {
            "f.py": HANDLER.format(code=self.code, answer=self.answer),
            "requirements.txt": "\n".join(self.requirements),
            STATE_REPORT: (HERE / STATE_REPORT).read_text(),
            **self.beside,
        }


def own_code() -> list[Program]:
    """Read the programs whose own code acts before or between imports."""
    return [_program(name, row, row["code"]) for name, row in _table("own_code.toml").items()]


def projects() -> list[Program]:
    """Read the programs as projects have them: applications, plugins, modules of settings."""
    return [_program(name, row, row["code"]) for name, row in _table("projects.toml").items()]


def pairs() -> list[Program]:
    """Read both programs of each pair: they have the same requirements, import different things, and answer one question."""
    return [
        _program(f"{name}-{which}", row, row[which], pair=name)
        for name, row in _table("pairs.toml").items()
        for which in ("one", "other")
    ]


def teachers(programs: Iterable[Program]) -> list[Program]:
    """Make programs that import the same and do nothing else: what they taught a Zygote must not answer for the programs.

    Returns: one for each list of requirements and imports. Both of a pair teach each other, so there is none for these."""
    found = {(each.requirements, each.code): each for each in map(_teacher, programs) if each.code and not each.pair}
    return list(found.values())


def _teacher(program: Program) -> Program:
    own = {Path(path).parts[0].removesuffix(".py") for path in program.beside}
    lines = [ast.unparse(node) for node in ast.walk(ast.parse(program.code)) if _imports_others(node, own)]
    code = "\n".join(f"try:\n    {line}\nexcept ImportError:\n    pass" for line in lines)
    return Program(f"{program.name}-teacher", program.requirements, code, "None", pair=program.pair)


def _imports_others(node: ast.AST, own: set[str]) -> bool:
    """Whether a node is an import of modules none of which is the program's own."""
    if isinstance(node, ast.ImportFrom):
        return str(node.module).partition(".")[0] not in own
    return isinstance(node, ast.Import) and not any(each.name.partition(".")[0] in own for each in node.names)


def _program(name: str, row: dict[str, Any], code: str, *, pair: str = "") -> Program:
    return Program(
        name,
        tuple(row.get("requirements", "").split()),
        code.strip(),
        row["answer"],
        row.get("own"),
        pair,
        row.get("files", {}),
        row.get("quick", False),
        row.get("learned", False),
    )


def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / name).read_text())
