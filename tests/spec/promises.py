"""The promises of SPECIFICATION.md and their proofs in proofs.toml, as data. Reads files; measures nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PROOFS = Path(__file__).with_name("proofs.toml")
PROMISE = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"\*\*(.+?)\*\*")
WORDS_LIMIT = 60
"""A promise has one or two sentences; what qualifies its evidence is a `note` in proofs.toml."""
FILE = re.compile(r"(tests/[\w/]+\.py)")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
CASE = re.compile(r"case ([A-Z]+\d+)")
AIM = re.compile(r'bench (\w+) "([^"]+)"(?: ([<>]= [\d.]+))?')
ROW = re.compile(r'bench (\w+) row "([^"]+)", "([^"]+)"')
PERFORMANCE = re.compile(
    r'performance "(?P<over>[^"]+)"(?: column (?P<first>\d))?(?: / "(?P<under>[^"]+)")? column (?P<column>\d) '
    r"(?P<sign>[<>]=) (?P<bound>[\d.]+)"
)


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of proofs.toml.

    Attributes:
        evidence: in the forms `tests/linux/test_cgroups.py` (all tests of the file), `tests/linux/test_cgroups.py::test_name`,
            `case A1`, `bench cold_start "name of an aim" <= 2`, `bench cold_start row "a word", "another"`, and
            `performance "row" column 1 >= 3` or `performance "row" / "row" column 1 <= 2` for docs/performance.md.
        note: qualifies the evidence.
        unproven: why the evidence does not prove the promise, if it does not.
    """

    evidence: tuple[str, ...] = ()
    note: str = ""
    unproven: str = ""


@dataclass(frozen=True)
class Promise:
    """One paragraph of the page, in one line."""

    number: int
    text: str

    @property
    def title(self) -> str:
        """The sentence in bold, or the empty text."""
        found = TITLE.match(self.text)
        return found[1] if found else ""


def promises(text: str | None = None) -> list[Promise]:
    """The promises of the page, in its order."""
    text = (ROOT / "SPECIFICATION.md").read_text() if text is None else text
    return [Promise(int(number), " ".join(body.split())) for number, body in PROMISE.findall(text)]


@cache
def proofs() -> dict[int, Proof]:
    """The proof of each promise, by its number."""
    tables = msgspec.toml.decode(PROOFS.read_bytes(), type=dict[str, Proof])
    return {int(number): proof for number, proof in tables.items()}


def wrong_promise(promise: Promise) -> Iterator[str]:
    """What is wrong with a promise's text, in words."""
    if not promise.title:
        yield "it has no sentence in bold"
    if len(promise.text.split()) > WORDS_LIMIT:
        yield f"it has more than {WORDS_LIMIT} words: a promise is one or two sentences"
    if re.search(r"Proof: |\bUnproven\b", promise.text):
        yield "its evidence belongs in tests/spec/proofs.toml"


def wrong_proof(proof: Proof) -> Iterator[str]:
    """What is wrong with a promise's proof, in words."""
    if not proof.evidence and not proof.unproven:
        yield "it must have evidence, or a reason why there is none"
    for text in proof.evidence:
        yield from wrong_evidence(text)


def wrong_evidence(text: str) -> Iterator[str]:
    """What is wrong with one line of evidence, in words."""
    if found := FILE.fullmatch(text):
        if not (ROOT / found[1]).is_file():
            yield f"there is no file {text}"
    elif found := TEST.fullmatch(text):
        if found[2] not in names_in(found[1]):
            yield f"there is no test {text}"
    elif found := CASE.fullmatch(text):
        if found[1] not in cases():
            yield f"there is no {text}"
    elif found := AIM.fullmatch(text):
        bench, name, aim = found.groups("")
        if not any(fits(name, known) and aim in ("", bound) for known, bound in aims(bench)):
            yield f"sockd bench {bench} has no aim {name!r} {aim}"
    elif found := ROW.fullmatch(text):
        bench, *words = found.groups()
        yield from (f"sockd bench {bench} has no row with {word!r}" for word in words if word not in words_of(bench))
    elif found := PERFORMANCE.fullmatch(text):
        yield from wrong_number(found)
    else:
        yield f"{text!r} cannot be read: the class Proof lists the forms"


# -- tests and cases


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's tests and state machines (`TestX = Machine.TestCase`); none if there is no such file."""
    if not (ROOT / file).is_file():
        return frozenset()
    body = ast.parse((ROOT / file).read_text()).body
    machines = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(names + [each.id for each in machines if isinstance(each, ast.Name)])


@cache
def cases() -> frozenset[str]:
    """The ids of all cases of the suite."""
    found = set()
    for folder in ("abuse", "faults", "images", "isolation", "spec"):
        for file in (ROOT / "tests" / folder).rglob("test_*.py"):
            if "case(" not in (text := file.read_text()):
                continue
            for node in ast.walk(ast.parse(text)):
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
