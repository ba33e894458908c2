"""SPECIFICATION.md as data: its promises, and the evidence that each names. Reads files; measures nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISE = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
CASE = re.compile(r"case `([A-Z]+\d+)`")
AIM = re.compile(r'bench `(\w+)` "([^"]+)"(?: `([<>]= [\d.]+)`)?')
ROW = re.compile(r'bench `(\w+)` row "([^"]+)", "([^"]+)"')
PERFORMANCE = re.compile(
    r'performance "(?P<over>[^"]+)"(?: column (?P<first>\d))?(?: / "(?P<under>[^"]+)")? column (?P<column>\d) '
    r"`(?P<sign>[<>]=) (?P<bound>[\d.]+)`"
)
UNPROVEN = re.compile(r"\*\*Unproven:\*\* (.{20,})", re.DOTALL)


@dataclass(frozen=True)
class Promise:
    """One paragraph of the page."""

    number: int
    text: str

    @property
    def title(self) -> str:
        """What stands in bold."""
        found = re.match(r"\*\*(.+?)\*\*", self.text, re.DOTALL)
        return " ".join(found[1].split()) if found else ""

    @property
    def unproven(self) -> str:
        """Why, or nothing."""
        found = UNPROVEN.search(self.text)
        return " ".join(found[1].split()) if found else ""

    @property
    def proof(self) -> str:
        """What follows the word, in one line."""
        return " ".join(self.text.partition("Proof: ")[2].split())

    @property
    def flat(self) -> str:
        """All of it in one line: evidence may be broken over two."""
        return " ".join(self.text.split())


def promises(text: str | None = None) -> list[Promise]:
    """In the page's order."""
    text = (ROOT / "SPECIFICATION.md").read_text() if text is None else text
    return [Promise(int(number), body.strip()) for number, body in PROMISE.findall(text)]


def missing(promise: Promise) -> Iterator[str]:
    """What is wrong with it, in words."""
    if not promise.title:
        yield "it has no sentence in bold"
    if bool(promise.proof) == bool(promise.unproven):
        yield "it must have either a proof or a reason why there is none"
    text = promise.flat
    evidence = [pattern.findall(text) for pattern in (TEST, CASE, AIM, ROW, PERFORMANCE)]
    if promise.proof and not any(evidence):
        yield "its proof names nothing"
    for file, name in TEST.findall(text):
        if name not in names_in(file):
            yield f"there is no test {file}::{name}"
    for case in CASE.findall(text):
        if case not in cases():
            yield f"there is no case {case}"
    for bench, name, aim in AIM.findall(text):
        if not any(fits(name, known) and aim in ("", bound) for known, bound in aims(bench)):
            yield f"sockd bench {bench} has no aim {name!r} {aim}"
    for bench, *words in ROW.findall(text):
        for word in words:
            if word not in words_of(bench):
                yield f"sockd bench {bench} has no row with {word!r}"
    for found in PERFORMANCE.finditer(text):
        yield from wrong_number(found)
    told = sum(map(len, evidence))
    hints = len(re.findall(r"::test_|\bcase `|\bbench `|\bperformance \"", text))
    if told != hints:
        yield f"{hints} proofs are hinted at, {told} can be read"


# -- tests and cases


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's tests; none if there is no such file."""
    if not (ROOT / file).is_file():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def cases() -> frozenset[str]:
    """The ids of all cases of the suite."""
    found = set()
    for folder in ("abuse", "agent_keeper", "faults", "networks", "spec"):
        for file in (ROOT / "tests" / folder).rglob("test_*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "case":
                    found |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return frozenset(map(str, found))


# -- benchmarks


@cache
def trees_of(bench: str) -> tuple[ast.Module, ...]:
    """A benchmark's module, and those of benchmarks/ that it imports from."""
    file = ROOT / "benchmarks" / f"{bench}.py"
    if not file.is_file():
        return ()
    tree = ast.parse(file.read_text())
    parts = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    near = [ROOT / f"{name.replace('.', '/')}.py" for name in parts if name.startswith("benchmarks.")]
    return tree, *(ast.parse(each.read_text()) for each in near)


@cache
def aims(bench: str) -> tuple[tuple[str, str], ...]:
    """(name, bound) of each aim, what is only known at run time as `*`; a bound that is a variable as each that it may be."""
    found = []
    for tree in trees_of(bench):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "aim":
                name, bound = node.args[0], node.args[2]
                bounds = [bound.value] if isinstance(bound, ast.Constant) else sorted(words_of(bench))
                found += [(template(name), str(each)) for each in bounds]
    return tuple(found)


def template(node: ast.expr) -> str:
    """The text of a literal, with `*` for what is put into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "*"


def fits(name: str, known: str) -> bool:
    """Whether the page means this aim. A template that is nothing but `*` is none."""
    return known.strip("*") != "" and name == known


@cache
def words_of(bench: str) -> frozenset[str]:
    """All literal texts of a benchmark."""
    nodes = (node for tree in trees_of(bench) for node in ast.walk(tree))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


# -- the tables of docs/performance.md


def wrong_number(found: re.Match[str]) -> Iterator[str]:
    """How the tables contradict a claim about them."""
    column = int(found["column"])
    try:
        value = cell(found["over"], int(found["first"] or column))
        if found["under"]:
            value /= cell(found["under"], column)
    except KeyError as error:
        yield f"docs/performance.md has no {error}"
        return
    bound = float(found["bound"])
    if not (value <= bound if found["sign"] == "<=" else value >= bound):
        yield f"docs/performance.md has {value:.2f}: {found[0]}"


def cell(row: str, column: int) -> float:
    """The number in a row of any table, named by its beginning. Raises: KeyError."""
    for line in (ROOT / "docs/performance.md").read_text().splitlines():
        cells = [each.strip().replace("**", "") for each in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].startswith(row) and column < len(cells):
            try:
                return float(cells[column])
            except ValueError:
                continue
    raise KeyError(f"row {row!r} with a number in column {column}")
