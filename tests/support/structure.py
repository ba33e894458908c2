"""The structure of the source tree in numbers: `python -m tests.support.structure [REVISION ...]` prints a column for each.

What tests/test_conventions.py holds down is counted in the same way, also in revisions from before there was such a test."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator

from tests.support.rooms import ROOT
from tests.test_conventions import (
    LINES,
    LONGEST_TEST_NAME,
    METHODS,
    TEST_NAME,
    assigns_to_another_part,
    is_constructor,
    is_unclear,
)

PRODUCT = ("sockd/", "zygote/", "initscripts/", "storage_lib/")
SHORT_LINES = 50
ROW = re.compile(r"^\| L\d+ \|", re.MULTILINE)

Files = dict[str, str]


def files_of(revision: str) -> Files:
    """The Python files and ARCHITECTURE.md of a revision, by path. Raises: CalledProcessError: there is no such revision."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith((".py", "ARCHITECTURE.md")):
                content = tar.extractfile(member)
                assert content is not None
                found[member.name] = content.read().decode()
    return found


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield " ".join(text.split())


def hidden_arrows(path: str, tree: ast.Module) -> int:
    """Callables that are assigned to another part's attribute: in constructors, and anywhere in the composition root."""
    is_root = path.startswith("sockd/worker/")
    scopes = [tree] if is_root else [node for node in ast.walk(tree) if is_constructor(node)]
    return sum(assigns_to_another_part(node) for scope in scopes for node in ast.walk(scope))


def numbers(files: Files) -> dict[str, object]:
    """What is counted, by its name."""
    product = {path: text for path, text in files.items() if path.startswith(PRODUCT)}
    trees = {path: ast.parse(text) for path, text in product.items()}
    lines = {path: text.count("\n") for path, text in product.items()}
    methods = {
        f"{path}:{node.name}": sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    largest = max(methods, key=lambda name: methods[name])
    tests = [name for path, text in files.items() if path.startswith("tests/") for name in TEST_NAME.findall(text)]
    return {
        "folders in sockd/": len({path.split("/")[1] for path in product if re.match(r"sockd/\w+/", path)}),
        "rows of ARCHITECTURE's table": len(ROW.findall(files.get("ARCHITECTURE.md", ""))),
        "lines of sockd/": sum(count for path, count in lines.items() if path.startswith("sockd/")),
        "lines of the product": sum(lines.values()),
        "files of the product": len(lines),
        f"files below {SHORT_LINES} lines": sum(count < SHORT_LINES for count in lines.values()),
        f"files above {LINES} lines": sum(count > LINES for count in lines.values()),
        "longest file": max(lines.values()),
        f"classes above {METHODS} methods": sum(count > METHODS for count in methods.values()),
        "largest class": f"{largest.rpartition(':')[2]} {methods[largest]}",
        "callables assigned from outside": sum(hidden_arrows(path, tree) for path, tree in trees.items()),
        "unclear docstrings": sum(is_unclear(text) for tree in trees.values() for text in docstrings(tree)),
        f"test names above {LONGEST_TEST_NAME}": sum(len(name) > LONGEST_TEST_NAME for name in tests),
    }


def main() -> None:
    """Print the table."""
    revisions = sys.argv[1:] or ["HEAD"]
    columns = [numbers(files_of(revision)) for revision in revisions]
    print(f"{'':34}" + "".join(f"{revision[:17]:>18}" for revision in revisions))
    for name in columns[0]:
        print(f"{name:34}" + "".join(f"{column[name]!s:>18}" for column in columns))


if __name__ == "__main__":
    main()
