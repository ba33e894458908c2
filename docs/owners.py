"""Which module and class owns which resource: `python -m docs.owners`, or `make owners`. Owns nothing.

The docstring of a module or class says what it owns, in a sentence that begins with "Owns". A printed list cannot drift from
the code, as a table in ARCHITECTURE.md would.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("sockd", "zygote", "initscripts", "storage_lib")
SENTENCE = re.compile(r"\bOwns\b (.+?[.;])(?= [A-Z]|$)")


def owners(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each module or class that owns something, `FILE` or `FILE CLASS`, and what it owns.

    Args:
        root: the directory that has FOLDERS.
    """
    for file in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        if "Owns" not in (text := file.read_text()):
            continue
        name, tree = str(file.relative_to(root)), ast.parse(text)
        documented = {name: ast.get_docstring(tree)}
        documented |= {
            f"{name} {each.name}": ast.get_docstring(each) for each in tree.body if isinstance(each, ast.ClassDef)
        }
        yield from ((key, owned) for key, docstring in documented.items() if (owned := _owned(docstring or "")))


def _owned(docstring: str) -> str:
    """What follows "Owns" in each of a docstring's sentences, or the empty text."""
    found = SENTENCE.findall(" ".join(docstring.split()))
    return " ".join(each for each in found if not each.startswith("nothing")).rstrip(".;")


if __name__ == "__main__":
    for module, owned in owners():
        print(f"{module}: {owned}")
