"""The program that reads a module for its handler: `python -I -S handler_checker.py SHOWN-PATH NAME...`, the source on stdin.

Prints what is wrong, or nothing: it does not compile, or it binds none of the names anywhere. What a module may bind without
saying so (`import *`, `globals()`, `__getattr__`) is not judged. Runs nothing of the source, and imports nothing of ours.
"""

from __future__ import annotations

import sys

ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST: `ast` itself would take longer to import than all of this
DYNAMIC = frozenset({"globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__getattr__", "*"})


def problem(source: bytes, shown: str, names: list[str]) -> str:
    """What is wrong, in a line."""
    try:
        tree = compile(source, shown, "exec", ONLY_TREE, dont_inherit=True)
        compile(source, shown, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{shown}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    except ValueError as error:
        return f"{shown}: {error}"
    except (OverflowError, RecursionError, MemoryError):
        return ""  # the sandbox will tell
    words = identifiers(tree)
    if words & {*names, *DYNAMIC}:
        return ""
    return f"{shown} has no {' and no '.join(names)}"


def identifiers(tree: object) -> set[str]:
    """Every identifier in a tree, wherever it stands: more than the module binds, never less."""
    found: set[str] = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, str):
            found.add(node.partition(".")[0])
        elif isinstance(node, list):
            nodes += node
        elif type(node).__name__ != "Constant":
            nodes += [getattr(node, name, None) for name in getattr(node, "_fields", ())]
    return found


if __name__ == "__main__":
    sys.stdout.write(problem(sys.stdin.buffer.read(), sys.argv[1], sys.argv[2:]))
