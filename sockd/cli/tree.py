"""`sockd tree`: the Zygote tree, and the packages that no Zygote may import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sockd.cli.client import Management, state_dir_option
from sockd.cli.output import json_option, print_json, size

if TYPE_CHECKING:
    from rich.tree import Tree

Node = dict[str, Any]


@click.command()
@state_dir_option
@json_option
def tree(state_dir: Path, as_json: bool) -> None:
    """Show the Zygote tree: which packages are imported ahead, and what that costs."""
    shown = Management(state_dir).get("tree")
    if as_json:
        print_json(shown)
        return
    root: Node | None = shown["root"]
    if root is None:
        click.echo("no Zygote is running")
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_rich(root))
    else:
        click.echo("\n".join(_plain(root)))
    for refused in shown["refused"]:
        click.echo(f"refused: {refused['package']}: {refused['reason']}")


def _label(node: Node) -> str:
    """One Zygote in a line; what the worker did not say is left out."""
    facts = [
        f"{node['modules']} modules" if "modules" in node else "",
        f"{size(node['unique_memory_bytes'])} of its own" if "unique_memory_bytes" in node else "",
        f"{node['starts']} starts" if "starts" in node else "",
        f"{node['rate']:.2g}/s" if node.get("rate") else "",
        f"{node['spares']} spare{'' if node['spares'] == 1 else 's'}" if "spares" in node else "",
    ]
    return f"{', '.join(node['packages']) or 'Python'}  ({'; '.join(fact for fact in facts if fact)})"


def _plain(node: Node, indent: str = "") -> Iterator[str]:
    if not indent:
        yield _label(node)
    children = node.get("children", ())
    for number, child in enumerate(children, start=1):
        last = number == len(children)
        yield f"{indent}{'└── ' if last else '├── '}{_label(child)}"
        yield from _plain(child, f"{indent}{'    ' if last else '│   '}")


def _rich(node: Node) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def add(parent: Tree, node: Node) -> None:
        for child in node.get("children", ()):
            add(parent.add(Text(_label(child))), child)

    top = Tree(Text(_label(node), style="bold"))
    add(top, node)
    return top
