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

from sockd_zygote.top_levels.decisions import HARMLESS, HARMLESS_METHODS, OWN_CONTAINERS, is_harmless, parts_now
from sockd_zygote.top_levels.own_calls import VARYING
from sockd_zygote.top_levels.source_texts import DEPTH, OF_TEXTS, Text

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Sequence

CONTAINERS = frozenset({"bytearray", "dict", "list", "set"})
DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)


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
        case ast.Call(function) if not _stays(node, text):
            return not (_is_one(function, text) and _are_known(node, text))
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


def _stays(call: ast.Call, text: Text) -> bool:
    """Whether a call changes nothing that an import sees, or runs code of the function's, which is judged itself."""
    if is_harmless(call.func):
        return True
    match call.func:
        case ast.Name("print"):
            files = [each.value for each in call.keywords if each.arg in ("file", None)]
            return not any(text.may_be_of_package(each, is_unknown=True) for each in files)
        case ast.Name(name):
            return name in HARMLESS or name.endswith(("Error", "Exception", "Warning")) or text.defines(name)
        case ast.Attribute(ast.Name(owner), name) if name in OWN_CONTAINERS:
            return all(_is_container(each, text) for each in text.values.get(owner, [call.func]))
        case ast.Attribute(owner, name):
            is_given = name not in OF_TEXTS and not _are_known(call, text)
            return name in HARMLESS_METHODS and not text.may_be_of_package(owner, is_unknown=is_given)
    return False


def _is_container(value: ast.expr, text: Text) -> bool:
    """Whether it makes a container of the code's own."""
    match value:
        case ast.Call(ast.Name(name)):
            return (name in CONTAINERS and not text.binds(name)) or text.is_plain_class(name)
        case ast.Call(ast.Attribute(ast.Name("collections"))):
            return "collections" in text.of_standard
    return isinstance(value, DISPLAYS)


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


def _are_known(call: ast.Call, text: Text) -> bool:
    """Whether all that a call gives is the same in each start."""
    return all(_is_known(each, text) for each in (*call.args, *(each.value for each in call.keywords)))


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
        case ast.Call(function):
            return text.is_determined(value) or (_is_of_path(function) and _are_known(value, text))
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
