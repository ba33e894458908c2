"""Ignore patterns: each decides as git's own does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sockd.functions.code.ignore_file import read
from tests.fuzz.fuzzing import fuzz

PATHS = [
    "a",
    "b/",
    "b/a",
    "b/a.c",
    "b/c/",
    "b/c/a",
    "a.c",
    "x/b/",
    "x/b/a",
    "A1",
    "-",
    "!a",
    "#a",
    "a ",
    "]",
    "[a]",
    "c^",
    "\\",
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    git(directory, "init", "-q")
    for path in PATHS:
        (directory / path.rstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).mkdir(exist_ok=True) if path.endswith("/") else (directory / path).touch()
    return directory


def git(directory: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-C", str(directory), *arguments], input=stdin, capture_output=True, env=environment
    ).stdout


def gits_verdicts(directory: Path) -> dict[str, int]:
    """The number of the line that decides about each path by itself; 0: none."""
    asked = b"\0".join(path.rstrip("/").encode() for path in PATHS) + b"\0"
    fields = git(directory, "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin", stdin=asked).split(b"\0")
    lines = [int(number or 0) for number in fields[1::4]]
    return dict(zip(PATHS, lines, strict=True))


def our_verdicts(directory: Path) -> dict[str, int]:
    """As git asks: about each directory above first; an ignored one decides about all in it."""
    file = read(directory, "", ".gitignore")
    assert file is not None
    found = {}
    for path in PATHS:
        above = [path[: each.end()] for each in re.finditer("/", path) if each.end() < len(path)]
        verdicts = [verdict for each in (*above, path) if (verdict := file.verdict(each))]
        deciding = next((each for each in verdicts if each[0]), None) or file.verdict(path)
        found[path] = int(deciding[1].split(" line ")[1].partition(":")[0]) if deciding else 0
    return found


PIECES = [
    "a",
    "b",
    "c",
    "x",
    "/",
    "*",
    "**",
    "/**",
    "**/",
    "?",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]",
    "[]]",
    "[[:alpha:]]",
    "[a",
    "\\",
]
LINES = st.lists(st.sampled_from([*PIECES, "!", "#", " ", ".c", "A", "1", "-", "[[:digit:]-]"]), max_size=5).map(
    "".join
)


@fuzz(150)
@given(lines=st.lists(LINES, min_size=1, max_size=3))
def test_lines_decide_as_gits_do(repository: Path, lines: list[str]) -> None:
    # git 2.39 compares what is before the first "*" by itself, and takes "**" for a whole part after "b", where gitignore(5) says
    # that it is one only between slashes.
    assume(not re.search(r"[^/!\n]\*\*", text := "\n".join(lines)))
    (repository / ".gitignore").write_text(text)
    assert our_verdicts(repository) == gits_verdicts(repository)
