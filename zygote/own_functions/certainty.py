"""Whether each start of a function comes to an import that one start has come to, as far as the text of its code tells.

A top level that imports in a branch, in a loop or behind a `return` may import something else in its next start: what decides may
be a clock, a service or a random number, and no recording sees that. An import is certain if every statement that leads to it,
from the entry module on, is executed by each start that comes to its end. The function's files are read when its code has run.
"""

from __future__ import annotations

import sys

from sockd_zygote.forks.module_kinds import OWN, RUNTIME_PACKAGE, Kinds

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import ast
    from types import FrameType
    from typing import Any

Place = tuple[str, int, str, int]
"""File and line where code runs, and the name and first line of its code object."""

DYNAMIC = ("import_module", "__import__")
OF_THE_INTERPRETER = frozenset(
    (
        *("TYPE_CHECKING", "os", "os.name", "sys", "sys.platform", "sys.platform.startswith", "sys.version_info"),
        *("typing", "typing.TYPE_CHECKING"),
    )
)
"""Names of a test whose outcome is that of each start, if it has no others."""


def places(kinds: Kinds) -> tuple[list[Place], bool]:
    """Return where the function's code is, the innermost place first, and whether nothing but the import system is between that
    and the import that begins."""
    found: list[Place] = []
    is_direct, frame = True, sys._getframe(1)
    while frame is not None:
        if _is_code(frame, kinds):
            code = frame.f_code
            found.append((code.co_filename, frame.f_lineno, code.co_name, code.co_firstlineno))
        elif not found and not _is_machinery(frame):
            is_direct = False
        frame = frame.f_back  # type: ignore[assignment]
    return found, is_direct


def _is_code(frame: FrameType, kinds: Kinds) -> bool:
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    is_runtime = module.partition(".")[0] == RUNTIME_PACKAGE or module == "__main__"
    return not is_runtime and not file.startswith("<") and kinds.key_of_file(file) == OWN


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module in ("importlib", RUNTIME_PACKAGE) or module.startswith((f"{RUNTIME_PACKAGE}.", "importlib._"))


def mark(steps: list[dict[str, Any]]) -> None:
    """Say of each import that is not certain that own code decides about it. Takes `places` out of the steps."""
    texts: dict[str, ast.Module | None] = {}
    for step in steps:
        at, is_direct = step.pop("places", ((), True))
        if step["before"]:
            continue
        for number, place in enumerate(at):
            if not _is_certain(place, texts, asks=is_direct and number == 0):
                file = place[0].rpartition("/")[2]
                step["before"] = f"what it imports from one start to another (line {place[1]} of {file})"
                break


def _is_certain(place: Place, texts: dict[str, ast.Module | None], *, asks: bool) -> bool:
    """Args: asks: whether this is where the import itself is asked for."""
    import ast

    file, line, name, first_line = place
    if file not in texts:
        texts[file] = _parsed(file)
    module = texts[file]
    if module is None:
        return False
    if name == "<module>":
        return _comes_to(module.body, line, asks=asks, may_return=False)
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if (node.name, _first_line(node)) == (name, first_line):
                    return _comes_to(node.body, line, asks=asks, may_return=not isinstance(node, ast.ClassDef))
    return False


def _parsed(file: str) -> ast.Module | None:
    import ast

    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _first_line(statement: ast.stmt) -> int:
    """With its decorators, as `co_firstlineno` is."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _holds(body: list[Any], line: int) -> bool:
    return any(_first_line(each) <= line <= (each.end_lineno or 0) for each in body)


def _comes_to(body: list[ast.stmt], line: int, *, asks: bool, may_return: bool) -> bool:
    """Whether each run of these statements to their end comes to the one at `line`."""
    import ast

    leaving = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    for statement in body:
        if _holds([statement], line):
            return _within(statement, line, asks=asks, may_return=may_return)
        if may_return and any(isinstance(each, leaving) for each in ast.walk(statement)):
            return False
    return False


def _within(statement: ast.stmt, line: int, *, asks: bool, may_return: bool) -> bool:
    import ast

    def inside(body: list[ast.stmt]) -> bool:
        return _comes_to(body, line, asks=asks, may_return=may_return)

    match statement:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Try(body, handlers, others, last):
            if _holds(body, line):
                return inside(body) and _imports_until(body, line)
            if _holds(last, line):
                return inside(last)
            rest = next((each for each in (*(each.body for each in handlers), others) if _holds(each, line)), None)
            return rest is not None and _imports_until(body, sys.maxsize) and inside(rest)
        case ast.With(items, body) if _holds(body, line):
            is_suppressing = any("suppress" in ast.unparse(each) for each in items)
            return inside(body) and (not is_suppressing or _imports_until(body, line))
        case ast.If(test, body, others) if _is_of_the_interpreter(test):
            return inside(body) or inside(others)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True  # its decorators, defaults and bases: its body is a place of its own
        case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Assert():
            return _is_plain(statement) and (not asks or _names_all(statement))
        case _:
            return False


def _is_of_the_interpreter(test: ast.expr) -> bool:
    import ast

    names = {ast.unparse(each) for each in ast.walk(test) if isinstance(each, ast.Attribute | ast.Name)}
    return bool(names) and names <= OF_THE_INTERPRETER


def _imports_until(body: list[ast.stmt], line: int) -> bool:
    """Whether all that comes before is imports: whether they succeed is alike in each start."""
    import ast

    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in body if (each.end_lineno or 0) < line)


def _is_plain(statement: ast.stmt) -> bool:
    """Whether all parts of it are evaluated."""
    import ast

    parts = (ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return not any(isinstance(each, parts) for each in ast.walk(statement))


def _names_all(statement: ast.stmt) -> bool:
    """Whether what it imports by a call has a constant name."""
    import ast

    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
    asking = [each for each in calls if ast.unparse(each.func).rpartition(".")[2] in DYNAMIC]
    return bool(asking) and all(each.args and isinstance(each.args[0], ast.Constant) for each in asking)
