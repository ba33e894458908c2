"""The conventions that a machine can check, on every Python file of the repository."""

from __future__ import annotations

import ast
import functools
import re
import tokenize
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# In two halves, so that this file passes.
MARKS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
OPENS = re.compile(r'"""[^"\s]')
NEEDS_ITS_NEIGHBOUR = re.compile(r"(Of|Those|Whose|Likewise|It)\b")
"""How a docstring begins that cannot be read without the name above it."""
NO_SUBJECT = re.compile(r"(?<!`)\btold\b(?![`:])|\bwhoever\b|\bfor who\b", re.IGNORECASE)
"""Words of sentences that do not name who acts. The name of a parameter in them is allowed."""
RETIRED = re.compile(r"(?<!`)\b(?:nobody|beside)\b(?![`:])", re.IGNORECASE)
"""Words that the product's docstrings and comments do without: plain English names the process, the client or the place."""
NAMED_PATH = re.compile(r"(?<![\w/.<{-])((?:[A-Za-z_][\w-]*/)+[\w-]+\.(?:py|js|css|html|md))\b")
"""A file as docstrings name it: from the root of the repository or from any folder. Paths to C are left out: the kernel's."""
LINES, METHODS = 400, 25
"""The most lines of a file and methods of a class of the product."""
TEST_NAME = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
LONGEST_TEST_NAME = 80
"""Characters: a test's name says subject, condition and result, and fits into a line of a report."""
LARGE = tomllib.loads((ROOT / "tests/large.toml").read_text())
"""The files and classes that are larger, with their sizes; the list may only shrink."""
MAY_SWALLOW = re.compile(r"except(?: (?:Base)?Exception(?: as \w+)?)?:")
MAY_NEED_ITS_NEIGHBOUR = re.compile(r"[\"'](?:\\\n)?\s*" + NEEDS_ITS_NEIGHBOUR.pattern)
"""Any string that begins with one of the words, as a file's text has it."""
SLEEPERS = {("time", "sleep"), ("asyncio", "sleep"), ("anyio", "sleep")}


def python_files(*tops: str) -> list[Path]:
    return sorted(file for top in tops for file in (ROOT / top).rglob("*.py"))


# To parse every file takes 15 s of a processor: these tests parse those that a look at the text does not decide.
pytestmark = pytest.mark.timeout(300)

# demo/functions is code as users write it.
OURS = [
    file
    for file in python_files("sockd", "zygote", "benchmarks", "demo", "tests", "vm")
    if "functions/" not in str(file)
]
# Some benchmarks measure what idleness does; nothing else waits for time to pass.
AWAKE = [file for file in OURS if ROOT / "benchmarks" not in file.parents]
PRODUCT = python_files("sockd", "zygote", "storage_lib", "initscripts")
DOCUMENTED = sorted({*PRODUCT, *OURS, *python_files("docs")})


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def is_sleep(node: ast.AST) -> bool:
    """A call of one of the sleeps, but for sleep(0), which only lets others run."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=attribute), args=[seconds, *_]):
            zero = isinstance(seconds, ast.Constant) and seconds.value == 0
            return (module, attribute) in SLEEPERS and not zero
    return False


def is_select(node: ast.AST) -> bool:
    """select(2), which takes no descriptor above 1023: a busy daemon has more, and its children inherit their numbers."""
    match node:
        case ast.Attribute(value=ast.Name(id="select"), attr="select"):
            return True
        case ast.ImportFrom(module="select", names=names):
            return any(each.name == "select" for each in names)
        case ast.Attribute(attr="SelectSelector") | ast.alias(name="SelectSelector"):
            return True
    return False


def swallows(node: ast.AST) -> bool:
    """`except: pass`, with no type or with the widest."""
    match node:
        case ast.ExceptHandler(type=None | ast.Name(id="Exception" | "BaseException"), body=[ast.Pass()]):
            return True
    return False


def places(files: list[Path], word: str | re.Pattern[str], is_offence: Callable[[ast.AST], bool]) -> list[str]:
    """Args: word: in each offence's source, so that files without it are not parsed."""
    return [
        f"{name(file)}:{getattr(node, 'lineno', 0)}"
        for file in files
        if re.search(word, file.read_text())
        for node in ast.walk(parsed(file))
        if is_offence(node)
    ]


def docstrings(file: Path) -> list[tuple[int, str]]:
    """The line and the text of each docstring, those of modules, classes, functions, fields and constants."""
    bodies = (getattr(node, "body", None) for node in ast.walk(parsed(file)))
    return [
        (statement.lineno, " ".join(statement.value.value.split()))
        for body in bodies
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def comments(file: Path) -> list[tuple[int, str]]:
    """The line and the text of each comment."""
    with file.open("rb") as source:
        tokens = tokenize.tokenize(source.readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def is_unclear(text: str) -> bool:
    """Return whether a docstring needs the name above it, or has one of the words that hide who acts."""
    return bool(NEEDS_ITS_NEIGHBOUR.match(text) or NO_SUBJECT.search(text))


@functools.cache
def known_files() -> frozenset[str]:
    """Each file that a docstring may name, by its path from the root and from each folder above it."""
    tops = ("sockd", "zygote", "initscripts", "storage_lib", "benchmarks", "demo", "docs", "tests")
    parts = [file.relative_to(ROOT).parts for top in tops for file in (ROOT / top).rglob("*.*")]
    return frozenset("/".join(each[begin:]) for each in parts for begin in range(len(each)))


def stale_paths(text: str) -> list[str]:
    """The paths in a docstring that are not the end of any file's path."""
    return [path for path in NAMED_PATH.findall(text) if path not in known_files()]


def test_nobody_sleeps_where_an_event_could_be_waited_for() -> None:
    assert places(AWAKE, "sleep", is_sleep) == []


def test_the_product_waits_for_any_descriptor() -> None:
    assert places(PRODUCT, "select", is_select) == []


def test_no_error_is_swallowed_unseen() -> None:
    assert places(OURS, MAY_SWALLOW, swallows) == []


def test_parts_are_given_to_each_other_as_arguments_or_listeners() -> None:
    """A callable that is assigned to an attribute of another part is an import upwards that `test_layers` cannot see. A sink
    is made to be given one, by the code that answers its request."""
    roots = [file for file in PRODUCT if ROOT / "sockd/worker" in file.parents]
    scopes: list[tuple[Path, ast.AST]] = [(file, parsed(file)) for file in roots]
    with_constructor = [file for file in PRODUCT if "def __init__" in file.read_text()]
    scopes += [(file, node) for file in with_constructor for node in ast.walk(parsed(file)) if is_constructor(node)]
    found = [(file, node) for file, scope in scopes for node in ast.walk(scope) if assigns_to_another_part(node)]
    assert [f"{name(file)}:{getattr(node, 'lineno', 0)}" for file, node in found] == []


def is_constructor(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def assigns_to_another_part(node: ast.AST) -> bool:
    """`part.attribute = lambda …`, `= partial(…)` or `= other.method`, where the part is not `self`."""
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))] | [ast.Attribute(attr="on_gone")]):
            return False
        case ast.Assign(targets=[ast.Attribute()], value=ast.Lambda() | ast.Attribute()):
            return True
        case ast.Assign(targets=[ast.Attribute()], value=ast.Call(func=ast.Name(id="partial"))):
            return True
    return False


def test_files_and_classes_are_small_and_the_large_ones_do_not_grow() -> None:
    files = {name(file): len(file.read_text().splitlines()) for file in PRODUCT if name(file) not in LARGE["tables"]}
    assert grown(files, LINES, LARGE["files"]) == []
    classes = {
        f"{name(file)}:{node.name}": sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        for file in PRODUCT
        if file.read_text().count("def ") > METHODS
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef)
    }
    assert grown(classes, METHODS, LARGE["classes"]) == []


def grown(sizes: dict[str, int], most: int, listed: dict[str, int]) -> list[str]:
    """What is larger than it may be, and the entries of the list that are not needed any more."""
    large = {key: size for key, size in sizes.items() if size > most}
    found = [
        f"{key} has {size}, more than {listed.get(key, most)}"
        for key, size in large.items()
        if size > listed.get(key, most)
    ]
    return found + [f"{key} is not large any more: take it out of the list" for key in listed if key not in large]


@pytest.mark.parametrize(
    ("sizes", "listed", "is_found"),
    [
        ({"a": 25}, {}, False),
        ({"a": 26}, {}, True),
        ({"a": 26}, {"a": 26}, False),
        ({"a": 27}, {"a": 26}, True),
        ({"a": 25}, {"a": 26}, True),
        ({}, {"a": 26}, True),
    ],
)
def test_a_large_class_is_found(sizes: dict[str, int], listed: dict[str, int], is_found: bool) -> None:
    assert bool(grown(sizes, 25, listed)) == is_found


def test_names_of_tests_are_short() -> None:
    found = [(name(file), test) for file in python_files("tests") for test in TEST_NAME.findall(file.read_text())]
    assert [(file, test) for file, test in found if len(test) > LONGEST_TEST_NAME] == []


def test_nothing_is_left_for_later() -> None:
    lines = ((file, number, line) for file in OURS for number, line in enumerate(file.read_text().splitlines(), 1))
    assert [f"{name(file)}:{number}" for file, number, line in lines if MARKS.search(line)] == []


def test_a_module_opens_by_saying_what_it_is() -> None:
    others = [file for file in OURS if not OPENS.match(file.read_text())]
    assert [name(file) for file in others if not ast.get_docstring(parsed(file))] == []


def test_a_docstring_can_be_read_alone() -> None:
    texts = {file: file.read_text() for file in DOCUMENTED}
    files = [file for file, text in texts.items() if MAY_NEED_ITS_NEIGHBOUR.search(text) or NO_SUBJECT.search(text)]
    found = [(name(file), line, text) for file in files for line, text in docstrings(file) if is_unclear(text)]
    assert found == []


def test_a_comment_names_who_acts() -> None:
    files = [file for file in DOCUMENTED if NO_SUBJECT.search(file.read_text())]
    found = [(name(file), line, text) for file in files for line, text in comments(file) if NO_SUBJECT.search(text)]
    assert found == []


def test_the_product_does_without_retired_words() -> None:
    files = [file for file in PRODUCT if RETIRED.search(file.read_text())]
    texts = ((file, line, text) for file in files for line, text in [*docstrings(file), *comments(file)])
    assert [(name(file), line, text) for file, line, text in texts if RETIRED.search(text)] == []


def test_paths_in_docstrings_lead_to_files() -> None:
    found = [
        (name(file), line, paths)
        for file in DOCUMENTED
        if stale_paths(file.read_text())
        for line, text in docstrings(file)
        if (paths := stale_paths(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("Of one sandbox.", True),
        ("It has asked.", True),
        ("The client is told why.", True),
        ("Owned by whoever asks.", True),
        ("Often used.", False),
        ("Its own uid.", False),
        ("The memory of one sandbox. Args: told: what came with it.", False),
    ],
)
def test_an_unclear_docstring_is_found(text: str, is_found: bool) -> None:
    assert is_unclear(text) == is_found


def test_a_stale_path_is_found() -> None:
    text = "See cgroups/tree.py, `sockd/linux/cgroups/tree.py`, linux/bpf.h and cgroups/" + "nowhere.py."
    assert stale_paths(text) == ["cgroups/" + "nowhere.py"]
