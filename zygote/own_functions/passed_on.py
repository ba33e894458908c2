"""What the function's code passes on to packages and to the standard library, where it may be another value in each start.

A branch shows that another start may do otherwise (`decisions`). A value does not: `shop.use(NAMES[time.time_ns() % 2])` imports
one plugin today and another one tomorrow, by the same statements. So where the code has asked a clock, a generator of random
numbers or the host for something, a statement before an import is a *passing on* if it gives anything but determined values
(`Text.is_determined`) to code that is not its own.
"""

from __future__ import annotations

import ast
import builtins
import sys

from sockd_zygote.own_functions.decisions import HARMLESS, HARMLESS_METHODS, OWN_CONTAINERS, is_harmless, parts_now
from sockd_zygote.own_functions.own_calls import VARYING
from sockd_zygote.own_functions.source_texts import Text

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Sequence

DEPTH = 8
"""Assignments that are followed to where an object was made."""


def first_passed_on(text: Text, body: Sequence[ast.stmt], until: int = sys.maxsize) -> int:
    """Return the line of the first statement part that passes such a value on; 0: there is none. Args: until: a line."""
    lines = (getattr(node, "lineno", 0) for node in parts_now(body) if _passes_on(node, text))
    return next((line for line in lines if line < until), 0)


def _passes_on(node: ast.AST, text: Text) -> bool:
    match node:
        case ast.Assign(targets, value) if any(_is_of_others(each, text) for each in targets):
            return not _is_known(value, text)
        case ast.AnnAssign(target, value=ast.expr() as value) | ast.AugAssign(target, _, value) if _is_of_others(
            target, text
        ):
            return not _is_known(value, text)
        case ast.Call(function, arguments, keywords) if not _stays(function, text):
            values = (*arguments, *(each.value for each in keywords))
            return not (_is_one(function, text) and all(_is_known(each, text) for each in values))
        case ast.Delete(targets):
            return any(isinstance(each, ast.Subscript) and not _is_known(each.slice, text) for each in targets)
    return False


def _is_of_others(target: ast.expr, text: Text) -> bool:
    """Whether an assignment changes more than the code's own names and objects."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_is_of_others(each, text) for each in target.elts)
    root = target
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    return root is not target and not (isinstance(root, ast.Name) and root.id not in text.imported)


def _stays(function: ast.expr, text: Text) -> bool:
    """Whether a call changes nothing that an import sees, or runs code of the function's, which is judged itself."""
    if is_harmless(function):
        return True
    match function:
        case ast.Name(name):
            return name in HARMLESS or name.endswith(("Error", "Exception", "Warning")) or text.defines(name)
        case ast.Attribute(ast.Name(owner), name):
            is_container = name in OWN_CONTAINERS and owner not in text.imported
            return is_container or (name in HARMLESS_METHODS and owner != "logging")
        case ast.Attribute(_, name):
            return name in HARMLESS_METHODS
    return False


def _is_one(called: ast.expr, text: Text, depth: int = DEPTH) -> bool:
    """Whether what is called, or the object that a method is called of, is the same in each start, or made in the same way."""
    match called:
        case ast.Attribute(owner):
            return _is_one(owner, text, depth)
        case ast.Call(function):
            return not _is_known_to_vary(function) and _is_one(function, text, depth)
        case ast.Name(name) if name in text.values and depth:
            return all(_is_one(each, text, depth - 1) for each in text.values[name])
    return _is_known(called, text)


def _is_known_to_vary(function: ast.expr) -> bool:
    return ast.unparse(function).rpartition(".")[2] in VARYING


def _is_known(value: ast.expr, text: Text) -> bool:
    """Whether a value is the same in each start: a determined one, a function, class or module, or made of such."""
    match value:
        case ast.Name(name):
            is_built_in = hasattr(builtins, name) and not text.binds(name)
            return is_built_in or text.is_determined(value) or text.defines(name) or _is_of_package(name, text)
        case ast.Attribute(owner):
            root = owner
            while isinstance(root, ast.Attribute):
                root = root.value
            is_of_package = isinstance(root, ast.Name) and _is_of_package(root.id, text)
            return is_of_package or text.is_determined(value) or text.is_determined(owner)
        case ast.Lambda():
            return True
        case ast.Call(function, arguments, keywords):
            parts = (*arguments, *(each.value for each in keywords))
            return text.is_determined(value) or (_is_of_path(function) and all(_is_known(each, text) for each in parts))
        case ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.BinOp() | ast.JoinedStr() | ast.FormattedValue():
            inner = [each for each in ast.iter_child_nodes(value) if isinstance(each, ast.expr)]
            return all(_is_known(each, text) for each in inner)
        case ast.Starred(unpacked):
            return _is_known(unpacked, text)
    return text.is_determined(value)


def _is_of_package(name: str, text: Text) -> bool:
    """Whether it is a module of a package, or what it has imported of one. (Names of the function's modules may be values.)"""
    return name in text.of_packages and text.names_one(name)


def _is_of_path(function: ast.expr) -> bool:
    """Whether it makes a path of its arguments and of nothing else."""
    return ast.unparse(function) in ("Path", "os.path.abspath", "os.path.dirname", "os.path.join", "pathlib.Path")
