"""What the function's code does in one start and may leave out in another, although no import is among it.

A branch, a loop or a handler of exceptions that changes something for the imports behind it proves nothing of a start that
decides otherwise. Such a statement is a *decision*, unless all that it may do stays in the function's own names. Names of the
code's own are no concern: packages do not see them.
"""

from __future__ import annotations

import ast

from sockd_zygote.top_levels.source_texts import PURE, PURE_METHODS, Text

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HARMLESS = PURE | {"callable", "chr", "id", "ord", "print", "super", "type", "vars"}
"""Functions of `builtins` that change nothing which an import sees."""
HARMLESS_METHODS = PURE_METHODS | frozenset(
    (
        *("absolute", "critical", "debug", "error", "exists", "fileno", "group", "info", "is_dir"),
        *("is_file", "isatty", "match", "read", "read_text", "resolve", "search", "strftime", "warning"),
    )
)
"""Methods, likewise; not of packages, whose methods may do anything by these names, and not of `logging`: `logging.info`
configures the root logger."""
OWN_CONTAINERS = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update")
)
"""Methods that change what they are called of: a name of the function's own, or something else."""
SUPPRESSING = ("ignor", "swallow", "raises")
"""Parts of the names of context managers that end exceptions."""
OF_IMPORTS = frozenset(("ImportError", "ModuleNotFoundError"))
"""Exceptions of imports, which fail in each start or in none."""
HARMLESS_CALLS = frozenset(
    (
        *("Decimal", "Path", "datetime.now", "datetime.utcnow", "json.dumps", "json.loads", "logging.getLogger"),
        *(
            "os.environ.get",
            "os.getcwd",
            "os.getenv",
            "os.listdir",
            "pathlib.Path",
            "time.monotonic",
            "time.perf_counter",
        ),
        *("sys.stderr.write", "sys.stdout.flush", "sys.stdout.write"),
        *("time.strftime", "time.time", "timedelta", "uuid.uuid4"),
    )
)
"""Functions and classes of the standard library that change nothing."""
HARMLESS_MODULES = ("datetime.", "math.", "os.path.", "re.")
"""Modules of which that holds for all functions."""
LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
LITERALS = (ast.Tuple, ast.List)


def first_decision(text: Text, body: Sequence[ast.stmt]) -> int:
    """Return the line of the first decision among statements; 0: there is none."""
    return _Finder(text).first(body)


def cannot_fail(statement: ast.stmt, text: Text) -> bool:
    """Return whether a statement ends alike in each start: an import of packages, or what evaluates nothing that may fail."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return not text.imports_own(statement)
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            return not statement.decorator_list and not arguments.defaults
        case ast.Expr(value) | ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return text.is_determined(value)
    return isinstance(statement, ast.Pass | ast.Global | ast.Nonlocal)


def catches(statement: ast.Try) -> bool:
    """Return whether it catches more than failed imports: whether those fail is alike in each start."""
    return any(each.type is None or not _names(each.type) <= OF_IMPORTS for each in statement.handlers)


def _ends_process(branch: Sequence[ast.stmt]) -> bool:
    """Whether it is a child's: what it changes ends with it."""
    return bool(branch) and isinstance(branch[-1], ast.Expr) and ast.unparse(branch[-1]).startswith("os._exit(")


def is_harmless(function: ast.expr) -> bool:
    """Return whether a function is one of the standard library's by its whole name, and no method of what a call returns."""
    if any(isinstance(each, ast.Call) for each in ast.walk(function)):
        return False
    name = ast.unparse(function)
    return name in HARMLESS_CALLS or name.startswith(HARMLESS_MODULES)


def _names(kind: ast.expr) -> set[str]:
    return {ast.unparse(each) for each in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}


def is_suppressing(statement: ast.With | ast.AsyncWith) -> bool:
    """Return whether one of its context managers ends exceptions, by its name, other than those of imports."""
    for item in statement.items:
        match item.context_expr:
            case ast.Call(function, arguments) if "suppress" in ast.unparse(function):
                if not {ast.unparse(each) for each in arguments} <= OF_IMPORTS:
                    return True
            case value if any(part in ast.unparse(value) for part in SUPPRESSING):
                return True
    return False


class _Finder:
    def __init__(self, text: Text) -> None:
        self._text = text

    def first(self, body: Sequence[ast.stmt]) -> int:
        """Return the line of the first decision among statements that each start begins; behind one that may leave, all effects
        are decisions."""
        is_left = False
        for statement in body:
            if line := self._effect([statement]) if is_left else self._decision(statement):
                return line
            is_left = is_left or self._may_leave(statement)
        return 0

    def _decision(self, statement: ast.stmt) -> int:
        text = self._text
        match statement:
            case ast.If(test, body, others):
                if text.is_determined(test):
                    return self.first(body) or self.first(others)
                branches = [each for branch in (body, others) if not _ends_process(branch) for each in branch]
                return self._evaluated([test]) or self._effect(branches)
            case ast.For(iter=values, body=body) if isinstance(values, LITERALS) and text.is_determined(values):
                # Where one round may end the loop, the next one is a decision.
                return self._effect(body) if any(map(self._may_leave, body)) else self.first(body)
            case ast.For(iter=value, body=body) | ast.AsyncFor(iter=value, body=body) | ast.While(value, body):
                return self._evaluated([value]) or self._effect([*body, *statement.orelse])
            case ast.Try(body, handlers, others, last):
                branches = [*(each for handler in handlers for each in handler.body), *others]
                if catches(statement) and not self._are_alike(body):
                    return self._guarded(body) or self._effect(branches) or self.first(last)
                return self.first(body) or self.first(branches) or self.first(last)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                if is_suppressing(statement) and not self._are_alike(body):
                    return self._guarded(body)
                return self._evaluated([each.context_expr for each in items]) or self.first(body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._evaluated(statement.decorator_list)
            case ast.Match() | ast.TryStar():
                return self._effect([statement])
        return self._evaluated([statement])

    def _guarded(self, body: Sequence[ast.stmt]) -> int:
        """Return the line of the first decision among statements whose exceptions are caught. Each start begins the first that
        may fail, and may not come to the next, nor to the end of that one, if it is code of the function's."""
        for number, statement in enumerate(body):
            if not cannot_fail(statement, self._text):
                is_own = self._text.imports_own(statement) or any(map(self._is_own_call, parts_now([statement])))
                return self._decision(statement) or self._effect(body[number if is_own else number + 1 :])
        return 0

    def _is_own_call(self, node: ast.AST) -> bool:
        """Whether a call may run code of the function's."""
        root = node.func if isinstance(node, ast.Call) else None
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        known = HARMLESS | self._text.of_packages
        return isinstance(node, ast.Call) and not (isinstance(root, ast.Name) and root.id in (known | {"open"}))

    def _are_alike(self, body: Sequence[ast.stmt]) -> bool:
        """Whether each start comes to the same end of these statements."""
        return all(cannot_fail(each, self._text) for each in body)

    def _may_leave(self, statement: ast.stmt) -> bool:
        """Whether a branch of a statement that each start comes to may end the statements behind it."""
        if isinstance(statement, ast.If) and self._text.is_determined(statement.test):
            return any(map(self._may_leave, (*statement.body, *statement.orelse)))
        kinds = (ast.Return, ast.Raise) if isinstance(statement, LOOPS) else LEAVING
        return not isinstance(statement, LEAVING) and any(isinstance(each, kinds) for each in parts_now([statement]))

    def _evaluated(self, nodes: Sequence[ast.AST]) -> int:
        """Return the line of the first effect in a part of expressions that may not be evaluated; 0: there is none."""
        for node in parts_now(nodes):
            parts: list[ast.expr] = []
            match node:
                case ast.IfExp(test, one, other) if not self._text.is_determined(test):
                    parts = [one, other]
                case ast.BoolOp(values=values) if not self._text.is_determined(values[0]):
                    parts = values[1:]
                case ast.ListComp(each, _) | ast.SetComp(each, _) | ast.GeneratorExp(each, _):
                    parts = [each]
                case ast.DictComp(key, value, _):
                    parts = [key, value]
            if line := self._effect(parts):
                return line
        return 0

    def _effect(self, nodes: Sequence[ast.AST]) -> int:
        """Return the line of the first part that changes more than names of the function's own; 0: there is none."""
        for node in parts_now(nodes):
            if self._is_effect(node):
                line: int = getattr(node, "lineno", 0)
                return line
        return 0

    def _is_effect(self, node: ast.AST) -> bool:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Await():
                return True
            case ast.Attribute(ast.Name("self" | "cls"), _, ast.Store()):
                return False
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                return True
            case ast.Subscript(owner, _, ast.Store() | ast.Del()):
                return not self._is_own(owner)
            case ast.Call(function, keywords=[]) if is_harmless(function):
                return False
            case ast.Call(ast.Name(name)):
                return name not in HARMLESS and not name.endswith(("Error", "Exception", "Warning"))
            case ast.Call(ast.Attribute(owner, name)):
                if name in OWN_CONTAINERS:
                    return not self._is_own(owner)
                is_of_package = self._text.may_be_of_package(owner, is_unknown=False)
                return name not in HARMLESS_METHODS or is_of_package or self._is_logging(owner)
            case ast.Call():
                return True
        return False

    def _is_own(self, owner: ast.expr) -> bool:
        """Whether it is a name of the code's own that stands for nothing of others, or an attribute of an object of the
        function's."""
        text = self._text
        if isinstance(owner, ast.Attribute):
            return isinstance(owner.value, ast.Name) and owner.value.id in ("self", "cls")
        is_own = isinstance(owner, ast.Name) and owner.id not in text.imported and not text.is_alias(owner.id)
        return is_own and not text.may_be_of_package(owner, is_unknown=False)

    def _is_logging(self, owner: ast.expr) -> bool:
        return isinstance(owner, ast.Name) and owner.id == "logging"


def parts_now(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield all parts that run with these: not the bodies of functions that they define."""
    pending = list(nodes)
    while pending:
        node = pending.pop(0)
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pending[:0] = [*node.decorator_list, *node.args.defaults]
            case ast.Lambda():
                pending[:0] = node.args.defaults
            case _:
                pending[:0] = ast.iter_child_nodes(node)
