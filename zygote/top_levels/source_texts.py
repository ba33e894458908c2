"""The text of the function's files: the statements of a code object, and the expressions whose value is that of each start.

A value is determined if it is made of constants, of what the interpreter tells of itself, and of the version's environment
variables, which each of its starts has.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

OF_THE_INTERPRETER = frozenset(
    (
        *("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__", "__file__", "__debug__", "os.name", "os.sep"),
        *("sys.platform", "sys.version_info", "sys.implementation.name", "sys.maxsize", "sys.byteorder"),
    )
)
"""Names whose value is that of each start."""
OF_ONE_START = frozenset(
    (
        *("AWS_LAMBDA_LOG_STREAM_NAME", "AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        *("AWS_SESSION_TOKEN", "_X_AMZN_TRACE_ID"),
    )
)
"""Environment variables that may differ from start to start."""
READS_VARIABLE = frozenset(("os.environ.get", "os.getenv", "environ.get", "getenv"))
PURE = frozenset(
    (
        *(
            "abs",
            "bool",
            "bytes",
            "dict",
            "enumerate",
            "float",
            "format",
            "frozenset",
            "int",
            "isinstance",
            "issubclass",
        ),
        *(
            "len",
            "list",
            "max",
            "min",
            "range",
            "repr",
            "reversed",
            "round",
            "set",
            "sorted",
            "str",
            "sum",
            "tuple",
            "zip",
        ),
    )
)
"""Functions of `builtins` that change nothing and whose result is made of their arguments."""
PURE_METHODS = frozenset(
    (
        *(
            "capitalize",
            "casefold",
            "count",
            "decode",
            "encode",
            "endswith",
            "find",
            "format",
            "get",
            "index",
            "isdigit",
        ),
        *("items", "join", "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "values"),
    )
)
"""Methods of texts and containers, likewise."""
OF_TEXTS = frozenset(
    (
        *("capitalize", "casefold", "endswith", "isdigit", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip"),
        *("title", "upper"),
    )
)
"""Methods that only texts have: an object with such a call is taken for a text, unless it is known to be a package's."""
PLAIN = frozenset(("bool", "bytes", "float", "format", "int", "len", "repr", "str"))
"""Functions of `builtins` whose result is no object of a package, whatever they are given."""
DEPTH = 8
"""Assignments that are followed to where an object was made."""
TRANSPARENT = (
    *(ast.BinOp, ast.BoolOp, ast.Compare, ast.Dict, ast.FormattedValue, ast.IfExp, ast.JoinedStr, ast.List, ast.Set),
    *(ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp),
)
"""Expressions that are determined if all of their parts are."""


Definition = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Text:
    """One file.

    Attributes:
        imported: names that its imports bind anywhere;
        of_packages: those of them that are no modules of the function's;
        of_standard: those of them that are the standard library's;
        values: all that is assigned to a name, of those that nothing else binds."""

    def __init__(self, module: ast.Module, is_own: Callable[[str], bool], changed: Collection[str]) -> None:
        """Args: is_own: whether a module, by its name, is the function's; changed: environment variables that its code sets."""
        self._is_own = is_own
        self._changed = changed
        self._codes: dict[tuple[str, int], Definition] = {("<module>", 0): module}
        self._stored = stored = Counter[str]()
        self.values: dict[str, list[ast.expr]] = {}
        self.imported: set[str] = set()
        self.of_packages: set[str] = set()
        self.of_standard: set[str] = set()
        for node in ast.walk(module):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self._codes[node.name, first_line(node)] = node
                    stored[node.name] += 1
                case ast.Import(names) | ast.ImportFrom(names=names):
                    bound = {each.asname or each.name.partition(".")[0] for each in names}
                    self.imported |= bound
                    self.of_packages |= bound if not self.imports_own(node) else set()
                    self.of_standard |= names_of_standard(node)
                case ast.Name(name, ast.Store() | ast.Del()):
                    stored[name] += 1
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
                    self.values.setdefault(name, []).append(value)
        self.values = {
            name: values
            for name, values in self.values.items()
            if stored[name] == len(values) and name not in self.imported
        }
        self._constants: set[str] = set()
        for statement in module.body:
            match statement:
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=ast.expr() as value):
                    if stored[name] == 1 and self.is_determined(value):
                        self._constants.add(name)

    def find(self, name: str, first: int) -> Definition | None:
        """Return what a code object is made of; None: it is no module, function or class of this file."""
        return self._codes.get((name, 0 if name == "<module>" else first))

    def names_one(self, name: str) -> bool:
        """Return whether a name stands for the same function, class or module in each start: nothing else is bound to it."""
        is_imported = name in self.imported
        return self._stored[name] + is_imported == 1 and (is_imported or any(name == each for each, _ in self._codes))

    def defines(self, name: str) -> bool:
        """Return whether a name stands for a function or a class of this file in each start."""
        return name not in self.imported and self.names_one(name)

    def binds(self, name: str) -> bool:
        """Return whether anything in this file is bound to a name."""
        return name in self._stored or name in self.imported

    def imports_own(self, statement: ast.stmt) -> bool:
        """Return whether a statement imports a module of the function's, which may fail in one start alone."""
        match statement:
            case ast.Import(names):
                return any(self._is_own(each.name) for each in names)
            case ast.ImportFrom(module, _, level):
                return level > 0 or self._is_own(module or "")
        return False

    def may_be_of_package(self, value: ast.expr, *, is_unknown: bool, depth: int = DEPTH) -> bool:
        """Return whether a value may be a package's module, function or object, of which a method does what the package wants.

        Args: is_unknown: the answer about what the text does not show: a parameter, or what a function of the code returns."""

        def may_be(part: ast.expr, depth: int = depth) -> bool:
            return self.may_be_of_package(part, is_unknown=is_unknown, depth=depth)

        if self.is_text(value, depth):
            return False
        match value:
            case ast.Name(name) if name in self.imported:
                return name in self.of_packages and name not in self.of_standard
            case ast.Name(name) if name in self.values:
                return not depth or any(may_be(each, depth - 1) for each in self.values[name])
            case ast.Name(name):
                is_known = name in OF_THE_INTERPRETER or self.defines(name)
                return is_unknown and not is_known and (self.binds(name) or not hasattr(builtins, name))
            case ast.Call(ast.Name(name)) if self.defines(name):
                return is_unknown and not self.is_plain_class(name)
            case ast.Call(ast.Name(name)) if name in PLAIN and not self.binds(name):
                return False
            case ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.Lambda():
                return False
        return any(may_be(each) for each in _parts_of(value))

    def is_text(self, value: ast.expr, depth: int = DEPTH) -> bool:
        """Return whether a value is a text, or bytes, by how it is made."""
        match value:
            case ast.Constant(str() | bytes()) | ast.JoinedStr():
                return True
            case ast.BinOp(left, ast.Add() | ast.Mult() | ast.Mod(), right):
                return self.is_text(left, depth) or self.is_text(right, depth)
            case ast.Call(ast.Attribute(owner, name)):
                return name in ("format", "join", "replace", "lower", "strip", "upper") and self.is_text(owner, depth)
            case ast.Name(name) if name in self.values and depth:
                return all(self.is_text(each, depth - 1) for each in self.values[name])
        return False

    def is_plain_class(self, name: str) -> bool:
        """Return whether a name stands for a class of this file that has all of its methods from there."""
        found = [node for (each, _), node in self._codes.items() if each == name and isinstance(node, ast.ClassDef)]
        return self.defines(name) and bool(found) and not any(each.bases or each.keywords for each in found)

    def is_alias(self, name: str) -> bool:
        """Return whether a name of the code's stands for an object that it has from an import: `path = sys.path`."""
        return any(_root(each) in self.imported for each in self.values.get(name, ()))

    def is_determined(self, value: ast.expr) -> bool:
        """Return whether each start of the version gets this value."""
        match value:
            case ast.Constant():
                return True
            case ast.Name(name):
                return name in OF_THE_INTERPRETER or name in self._constants
            case ast.Attribute():
                return ast.unparse(value) in OF_THE_INTERPRETER
            case ast.Call(function, arguments, []) if ast.unparse(function) in READS_VARIABLE:
                return self._is_variable(arguments[0]) and all(map(self.is_determined, arguments[1:]))
            case ast.Call(ast.Name(name), arguments, []) if name in PURE:
                return all(map(self.is_determined, arguments))
            case ast.Call(ast.Attribute(receiver, name), arguments, []) if name in PURE_METHODS:
                return all(map(self.is_determined, (receiver, *arguments)))
            case ast.Subscript(ast.Attribute() | ast.Name() as variables, name) if _is_environ(variables):
                return self._is_variable(name)
            case ast.Compare(name, [ast.In() | ast.NotIn()], [variables]) if _is_environ(variables):
                return self._is_variable(name)
        parts = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
        return isinstance(value, TRANSPARENT) and all(map(self.is_determined, parts))

    def _is_variable(self, name: ast.expr) -> bool:
        """Whether it names an environment variable that each start of the version has alike."""
        return isinstance(name, ast.Constant) and name.value not in OF_ONE_START and name.value not in self._changed


def read_text(file: str, is_own: Callable[[str], bool], changed: Collection[str]) -> Text | None:
    """Parse a file; None: it cannot be. Args: as `Text`'s."""
    try:
        with open(file, "rb") as source:
            return Text(ast.parse(source.read()), is_own, changed)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def first_line(statement: ast.stmt) -> int:
    """Return the line that a statement begins at, with its decorators, as `co_firstlineno` is."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def holds(body: Sequence[ast.stmt | ast.ExceptHandler], line: int) -> bool:
    """Return whether a line is in one of these statements."""
    first = [first_line(each) if isinstance(each, ast.stmt) else each.lineno for each in body]
    return any(begin <= line <= (each.end_lineno or 0) for begin, each in zip(first, body, strict=True))


def names_of_standard(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names that a statement binds to what is the standard library's."""
    match statement:
        case ast.ImportFrom(module, found, 0):
            return {each.asname or each.name for each in found} if is_of_standard(module or "") else set()
        case ast.Import(found):
            return {each.asname or each.name.partition(".")[0] for each in found if is_of_standard(each.name)}
    return set()


def is_of_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _parts_of(value: ast.expr) -> list[ast.expr]:
    """Return the parts of an expression, and the arguments of a call."""
    keywords = [each.value for each in value.keywords] if isinstance(value, ast.Call) else []
    return [*(each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)), *keywords]


def _root(value: ast.expr) -> str:
    """Return the name that attributes and items are taken of; empty: it is something else."""
    while isinstance(value, ast.Attribute | ast.Subscript):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_environ(value: ast.expr) -> bool:
    return ast.unparse(value) in ("os.environ", "environ")
