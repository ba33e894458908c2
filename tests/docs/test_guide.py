"""The guide's lines of `sockd ...` name commands and options that exist. (What the tutorials tell, test_tutorials types in.)"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from sockd.client.cli.main import cli

REPO = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`((?:sudo )?sockd [a-z][^`]*)`")


def reported(page: Path) -> list[str]:
    """Each command line of `sockd` on a page, without comments."""
    text = page.read_text()
    lines = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    lines += [" ".join(found.split()) for found in _INLINE.findall(_BLOCK.sub("", text))]
    bare = (re.sub(r"\s+#.*| [&|>] .*| &$", "", line.removeprefix("$ ").removeprefix("sudo ")) for line in lines)
    whole = [line for line in bare if line.startswith("sockd ") and not re.search(r"\.\.\.|…|\[|<", line)]
    return [each for line in whole for each in spelled_out(line)]


def spelled_out(line: str) -> list[str]:
    """`a|b` stands for two lines."""
    choice = re.search(r"[\w-]+(?:\|[\w-]+)+", line)
    return [line.replace(choice[0], word) for word in choice[0].split("|")] if choice else [line]


PAGES = [REPO / "README.md", *(REPO / "docs/guide").glob("*.md"), *(REPO / "docs/internals").glob("*.md")]
LINES = sorted({line for page in PAGES for line in reported(page)})


def test_there_are_lines_to_look_at() -> None:
    assert len(LINES) > 40


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_one_that_the_command_understands(line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line.partition(";")[0])[1:]
    context = click.Context(cli, info_name="sockd")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"{line}: no command {name}"
        command, context = found, click.Context(found, context, name, **found.context_settings)
    command.make_parser(context).parse_args(words)  # raises click.UsageError: no such option
