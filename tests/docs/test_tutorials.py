"""The commands of the tutorials and of the README's quick start do what these pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.console import Example, Reader, examples, matches

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs/tutorials").glob("*.md"))
README = REPO / "README.md"
PORTS = (5000, 9000)


def test_a_page_is_cut_into_commands_and_what_they_print() -> None:
    page = "text\n```console\n$ cat > f <<'EOF'\n$ not a command\nEOF\n$ ls\nf\n```\n```sh\n$ never\n```\n"
    assert examples(page) == [Example("cat > f <<'EOF'\n$ not a command\nEOF", []), Example("ls", ["f"])]


@pytest.mark.parametrize(
    ("expected", "shown", "same"),
    [
        ([], [], True),
        (["a"], [], False),
        ([], ["a"], False),
        (["took … ms"], ["took 1.5 ms"], True),
        (["took … ms"], ["took 1.5 s"], False),
        (["a", "…", "d"], ["a", "b", "c", "d"], True),
        (["a", "…", "d"], ["a", "b", "c"], False),
    ],
)
def test_dots_stand_for_what_differs(expected: list[str], shown: list[str], same: bool) -> None:
    assert matches(expected, shown) is same


@pytest.mark.root
@pytest.mark.timeout(360)
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_does_what_it_says(page: str, tmp_path: Path) -> None:
    with Reader(tmp_path, PORTS) as reader:
        reader.follow((REPO / page).read_text())


@pytest.mark.root
@pytest.mark.timeout(360)
def test_the_quick_start_can_be_pasted_as_one_block(tmp_path: Path) -> None:
    block = next(
        block for block in re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.M | re.S) if "sockd deploy" in block
    )
    with Reader(tmp_path, PORTS) as reader:
        shown = reader.paste(block)
    assert any('{"hello":"world"}' in line for line in shown), shown
