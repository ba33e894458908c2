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

from tests.support.sources import docstrings, parsed, statements, text_of

ROOT = Path(__file__).parent.parent
# In two halves, so that this file passes.
MARKS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
OPENS = re.compile(r'"""[^"\s]')
NEEDS_ITS_NEIGHBOUR = re.compile(r"(Of|Those|Whose|Likewise|It)\b")
"""How a docstring begins that cannot be read without the name above it."""
NO_SUBJECT = re.compile(r"(?<!`)\btold\b(?![`:])|\bwhoever\b|\bfor who\b", re.IGNORECASE)
"""Words of sentences that do not name who acts. The name of a parameter in them is allowed."""
RETIRED = re.compile(
    r"(?<![a-z\"])(?:nobody|beside|told|noted|whoever|crumbs|house|door|ground)(?![a-z\"])|_apart\b", re.IGNORECASE
)
"""Words that the product does without, in its names as in its texts: plain English names the process, the client or the place.
With quotes around it, it is the user's name `"nobody"` of Linux."""
NAMED_PATH = re.compile(r"(?<![\w/.<{-])((?:[A-Za-z_][\w-]*/)+[\w-]+\.(?:py|js|css|html|md))\b")
"""A file as docstrings name it: from the root of the repository or from any folder. Paths to C are left out: the kernel's."""
LINES, METHODS = 400, 25
"""The most lines of a file and methods of a class of the product."""
TEST_NAME = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
LONGEST_TEST_NAME = 80
"""Characters: a test's name says subject, condition and result, and fits into a line of a report."""
LARGE = tomllib.loads((ROOT / "tests/large.toml").read_text())
"""The files and classes that are larger, with their sizes; the list may only shrink."""
MAY_SWALLOW = re.compile(r"except(?: (?:Base)?Exception(?: as \w+)?)?:(?:\s|#.*\n)*pass\b")
MAY_NEED_ITS_NEIGHBOUR = re.compile(r"^\s*\w?[\"']+(?:\\\n)?\s*" + NEEDS_ITS_NEIGHBOUR.pattern, re.MULTILINE)
"""A string that begins a line and with one of the words, as a file's text has it. The formatter gives each statement lines of
its own."""
MAY_ASSIGN_TO_ANOTHER_PART = re.compile(r"^ *(?!self\.\w+ = )\S.*\.\w+ = ", re.MULTILINE)
METHOD = re.compile(r"^ +(?:async )?def ", re.MULTILINE)
SLEEPERS = {("time", "sleep"), ("asyncio", "sleep"), ("anyio", "sleep")}
MAY_SLEEP = re.compile(r"\b(?:time|asyncio|anyio)\s*\.\s*sleep\s*\((?!0[,)])")
MAY_SELECT = re.compile(r"\bselect\s*\.\s*select\b|\bfrom\s+select\s+import\b|\bSelectSelector\b")
"""What an offence has in a file's text: a file without it is not parsed."""


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
SOURCES = [
    file
    for top in ("sockd", "zygote", "storage_lib", "initscripts")
    for file in sorted((ROOT / top).rglob("*.*"))
    if file.suffix in {".py", ".pyi", ".c", ".h", ".rs", ".html", ".js"} and "target" not in file.parts
]
DOCUMENTED = sorted({*PRODUCT, *OURS, *python_files("docs")})


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


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


def places(files: list[Path], words: re.Pattern[str], is_offence: Callable[[ast.AST], bool]) -> list[str]:
    """Args: words: in each offence's source, so that files without them are not parsed."""
    return [
        f"{name(file)}:{getattr(node, 'lineno', 0)}"
        for file in files
        if words.search(text_of(file))
        for node in ast.walk(parsed(file))
        if is_offence(node)
    ]


def comments(file: Path) -> list[tuple[int, str]]:
    """The line and the text of each comment."""
    with file.open("rb") as source:
        tokens = tokenize.tokenize(source.readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def has_comment_with(words: re.Pattern[str], file: Path) -> bool:
    """Return whether a number sign is before such words in a line: each comment is so, and few other lines are."""
    found = (line.partition("#")[2] for line in text_of(file).splitlines() if "#" in line)
    return any(words.search(each) for each in found)


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


def test_no_one_sleeps_where_an_event_could_be_waited_for() -> None:
    assert places(AWAKE, MAY_SLEEP, is_sleep) == []


def test_the_product_waits_for_any_descriptor() -> None:
    assert places(PRODUCT, MAY_SELECT, is_select) == []


def test_no_error_is_swallowed_unseen() -> None:
    assert places(OURS, MAY_SWALLOW, swallows) == []


def test_parts_are_given_to_each_other_as_arguments_or_listeners() -> None:
    """A callable that is assigned to an attribute of another part is an import upwards that `test_layers` cannot see. A sink
    is made to be given one, by the code that answers its request."""
    files = [file for file in PRODUCT if MAY_ASSIGN_TO_ANOTHER_PART.search(text_of(file))]
    found = [
        f"{name(file)}:{getattr(node, 'lineno', 0)}"
        for file in files
        for scope in scopes_of_composition(file)
        for node in statements(scope)
        if assigns_to_another_part(node)
    ]
    assert found == []


def scopes_of_composition(file: Path) -> list[ast.AST]:
    """Return where a file makes parts: in constructors, and in the composition root everywhere."""
    tree = parsed(file)
    return (
        [tree] if ROOT / "sockd/worker" in file.parents else [each for each in statements(tree) if is_constructor(each)]
    )


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
    files = {name(file): len(text_of(file).splitlines()) for file in PRODUCT if name(file) not in LARGE["tables"]}
    assert grown(files, LINES, LARGE["files"]) == []
    classes = {
        f"{name(file)}:{node.name}": sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        for file in PRODUCT
        if len(METHOD.findall(text_of(file))) > METHODS
        for node in statements(parsed(file))
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
    found = [(name(file), test) for file in python_files("tests") for test in TEST_NAME.findall(text_of(file))]
    assert [(file, test) for file, test in found if len(test) > LONGEST_TEST_NAME] == []


def test_nothing_is_left_for_later() -> None:
    files = [file for file in OURS if MARKS.search(text_of(file))]
    lines = ((file, number, line) for file in files for number, line in enumerate(text_of(file).splitlines(), 1))
    assert [f"{name(file)}:{number}" for file, number, line in lines if MARKS.search(line)] == []


def test_a_module_opens_by_saying_what_it_is() -> None:
    others = [file for file in OURS if not OPENS.match(text_of(file))]
    assert [name(file) for file in others if not ast.get_docstring(parsed(file))] == []


def test_a_docstring_can_be_read_alone() -> None:
    texts = {file: text_of(file) for file in DOCUMENTED}
    files = [file for file, text in texts.items() if MAY_NEED_ITS_NEIGHBOUR.search(text) or NO_SUBJECT.search(text)]
    found = [(name(file), line, text) for file in files for line, text in docstrings(file) if is_unclear(text)]
    assert found == []


def test_a_comment_names_who_acts() -> None:
    files = [file for file in DOCUMENTED if has_comment_with(NO_SUBJECT, file)]
    found = [(name(file), line, text) for file in files for line, text in comments(file) if NO_SUBJECT.search(text)]
    assert found == []


def test_the_product_does_without_retired_words() -> None:
    texts = {file: text_of(file) for file in SOURCES}
    assert [(name(file), each.group()) for file, text in texts.items() for each in RETIRED.finditer(text)] == []


def test_paths_in_docstrings_lead_to_files() -> None:
    found = [
        (name(file), line, paths)
        for file in DOCUMENTED
        if stale_paths(text_of(file))
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
