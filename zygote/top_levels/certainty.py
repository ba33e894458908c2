"""Whether each start of a function comes to an import as one start has come to it, as far as the text of its code tells.

A top level that imports in a branch, in a loop or behind a `return` may import something else in its next start: what decides may
be a clock, a service or a random number, and no recording sees that. An import is certain if every statement that leads to it,
from the entry module on, is executed by each start that comes to its end, and if no statement before it is a decision
(`decisions`). The function's files are read when its code has run.
"""

from __future__ import annotations

import ast
import sys

from sockd_zygote.forks.module_kinds import OWN, Kinds
from sockd_zygote.top_levels.decisions import cannot_fail, catches, first_decision, is_suppressing
from sockd_zygote.top_levels.own_calls import BY_CALL, BY_IMPORT, Code, Place
from sockd_zygote.top_levels.passed_on import first_passed_on
from sockd_zygote.top_levels.source_texts import Definition, Text, holds, read_text

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

DYNAMIC = ("import_module", "__import__")
RUN_BY_CLASSES = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__")
"""Methods that run where a class is named."""


def mark(steps: list[dict[str, Any]], finished: Sequence[Code], changed: Collection[str], kinds: Kinds) -> None:
    """Say of each import that is not certain that own code decides about it. Takes `places`, `finished` and `varies` out of the
    steps.

    Args:
        finished: code objects that have returned, of which a step's `finished` counts those before it;
        changed: environment variables that own code sets."""
    judge = Judge(kinds, changed)
    for step in steps:
        at, count, varies = step.pop("places", ()), step.pop("finished", 0), step.pop("varies", False)
        if not step["before"]:
            done = finished[:count]
            step["before"] = judge.uncertain_place(at) or judge.decision_before(at, done)
            if varies and not step["before"]:
                step["before"] = judge.passed_on_before(at, done)


class Judge:
    """Reads each of the function's files once, and remembers the first decision."""

    def __init__(self, kinds: Kinds, changed: Collection[str]) -> None:
        self._changed = changed
        self._kinds = kinds
        self._texts: dict[str, Text | None] = {}
        self._lines: dict[Code, int] = {}
        """The line of the first decision of each code object that was looked at; 0: it has none."""
        self._judged = 0
        self._decision = ""

    def uncertain_place(self, at: Sequence[Place]) -> str:
        """Return the first place of an import that another start may not come to, in words; empty: there is none."""
        is_caught = False
        for number in reversed(range(len(at))):
            file, line, name, first, _ = at[number]
            text = self._text(file)
            definition = text and text.find(name, first)
            inside = at[number - 1] if number else None
            way = _Way(text, at[number], inside, is_caught) if text else None
            if way is None or not definition or not way.leads_through(definition):
                return f"what it imports from one start to another ({_where(file, line)})"
            is_caught = way.is_caught
        return ""

    def decision_before(self, at: Sequence[Place], finished: Sequence[Code]) -> str:
        """Return the first decision of the code that has run before an import, in words; empty: there is none."""
        for file, name, first in finished[self._judged :]:
            self._decision = self._decision or self._decision_in(file, name, first)
        self._judged = max(self._judged, len(finished))
        running = (self._decision_in(file, name, first, until=line) for file, line, name, first, _ in at)
        return self._decision or next(filter(None, running), "")

    def passed_on_before(self, at: Sequence[Place], finished: Sequence[Code]) -> str:
        """Return the first statement before an import that may pass on another value in each start, in words; empty: none."""
        every = [(file, name, first, sys.maxsize) for file, name, first in finished]
        every += [(file, name, first, line) for file, line, name, first, _ in at]
        for file, name, first, until in every:
            text = self._text(file)
            definition = text and text.find(name, first)
            if text and definition and (line := first_passed_on(text, definition.body, until)):
                return f"what it passes on from one start to another ({_where(file, line)})"
        return ""

    def _decision_in(self, file: str, name: str, first: int, until: int = sys.maxsize) -> str:
        """Args: until: the line where the code is now."""
        code = file, name, first
        if code not in self._lines:
            text = self._text(file)
            definition = text and text.find(name, first)
            self._lines[code] = first_decision(text, definition.body) if text and definition else 0
        line = self._lines[code]
        return f"what it does from one start to another ({_where(file, line)})" if 0 < line < until else ""

    def _text(self, file: str) -> Text | None:
        if file not in self._texts:
            self._texts[file] = read_text(file, self._is_own, self._changed)
        return self._texts[file]

    def _is_own(self, module: str) -> bool:
        return module in sys.modules and self._kinds.key_of(module, sys.modules[module]) == OWN


class _Way:
    """The statements of one code object that lead to the place inside it."""

    def __init__(self, text: Text, place: Place, inside: Place | None, is_caught: bool) -> None:
        """Args: inside: None: the import itself begins there; is_caught: whether code outside catches what fails here."""
        self._text = text
        self._line = place[1]
        self._by = place[4]
        self._inside = inside
        self.is_caught = is_caught

    def leads_through(self, definition: Definition) -> bool:
        may_return = isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        return self._comes_to(definition.body, may_return=may_return)

    def _comes_to(self, body: list[ast.stmt], *, may_return: bool) -> bool:
        """Whether each run of these statements to their end comes to the one at the line."""
        leaving = (ast.Return, ast.Raise, ast.Break, ast.Continue)
        for statement in body:
            if holds([statement], self._line):
                return self._within(statement, may_return=may_return)
            if may_return and any(isinstance(each, leaving) for each in ast.walk(statement)):
                return False
            if self.is_caught and not cannot_fail(statement, self._text):
                return False
        return False

    def _within(self, statement: ast.stmt, *, may_return: bool) -> bool:
        def inside(body: list[ast.stmt]) -> bool:
            return self._comes_to(body, may_return=may_return)

        match statement:
            case ast.Import() | ast.ImportFrom():
                return not self.is_caught or self._inside is not None or not self._text.imports_own(statement)
            case ast.Try(body, handlers, others, last):
                if holds(last, self._line):
                    return inside(last)
                if holds(body, self._line):
                    self.is_caught = self.is_caught or catches(statement)
                    return inside(body)
                rest = next(
                    (each for each in (*(each.body for each in handlers), others) if holds(each, self._line)), None
                )
                return rest is not None and all(cannot_fail(each, self._text) for each in body) and inside(rest)
            case ast.With(items, body) if holds(body, self._line):
                if self.is_caught and not all(self._text.is_determined(each.context_expr) for each in items):
                    return False
                self.is_caught = self.is_caught or is_suppressing(statement)
                return inside(body)
            case ast.If(test, body, others) if holds([*body, *others], self._line):
                return self._text.is_determined(test) and (inside(body) or inside(others))
            case ast.If(head) | ast.While(head) | ast.For(iter=head) if not holds(
                [*statement.body, *statement.orelse], self._line
            ):
                return self._goes_on([head])
            case ast.With(items) if not holds(statement.body, self._line):
                return self._goes_on([each.context_expr for each in items])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._goes_on([*statement.decorator_list, *statement.args.defaults])
            case ast.ClassDef(name, bases, keywords):
                parts = [*statement.decorator_list, *bases, *(each.value for each in keywords)]
                is_body = self._inside is not None and self._inside[2] == name
                return is_body or all(map(self._is_the_same, bases)) or self._goes_on(parts)
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Assert():
                return self._goes_on([statement])
        return False

    def _goes_on(self, nodes: Sequence[ast.AST]) -> bool:
        """Whether all parts are evaluated, and the one that goes on inside names what it calls or imports."""
        parts = [part for node in nodes for part in ast.walk(node)]
        if any(isinstance(each, ast.IfExp | ast.BoolOp | ast.comprehension) for each in parts):
            return False
        functions = [each.func for each in parts if isinstance(each, ast.Call)]
        if self._by == BY_CALL:
            return any(map(self._is_the_same, [*functions, *nodes]))
        if self._by != BY_IMPORT:
            return True
        asking = [each for each in parts if isinstance(each, ast.Call) and _name_of(each.func) in DYNAMIC]
        are_named = all(each.args and isinstance(each.args[0], ast.Constant) for each in asking)
        return bool(asking) and are_named and not (self.is_caught and len(asking) < len(functions))

    def _is_the_same(self, called: ast.AST) -> bool:
        """Whether an expression stands for the same function or class in each start, and it is what runs inside."""
        if self._inside is None or not (self._inside[2] in RUN_BY_CLASSES or self._inside[2] == _name_of(called)):
            return False
        owner = called.value if isinstance(called, ast.Attribute) else called
        return isinstance(owner, ast.Name) and self._text.names_one(owner.id)


def _name_of(called: ast.AST) -> str:
    return ast.unparse(called).rpartition(".")[2] if isinstance(called, ast.Name | ast.Attribute) else ""


def _where(file: str, line: int) -> str:
    return f"line {line} of {file.rpartition('/')[2]}"
