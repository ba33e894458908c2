"""`sockd tree`: the Zygote tree, and the packages that no Zygote may import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size, span
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import echo_lines, json_option, print_json
from sockd.client.console.terminal import watch

Node = dict[str, Any]


@click.command()
@click.option("--live", is_flag=True, help="Update every second, until Ctrl-C.")
@state_dir_option
@json_option
def tree(live: bool, state_dir: Path, as_json: bool) -> None:
    """Show the Zygotes, their packages and their memory."""
    management = Management(state_dir)
    if live and not as_json and sys.stdout.isatty():
        watch(lambda width: lines(management.get("tree")), 1.0)
        return
    shown = management.get("tree")
    if as_json:
        print_json(shown)
        return
    echo_lines(lines(shown))


def lines(shown: dict[str, Any]) -> list[str]:
    """The tree as text."""
    root = shown["root"]
    refused = [f"refused: {row['package']}: {refusal(row)}" for row in shown["refused"]]
    snapshots = [f"snapshot: {snapshot(row)}" for row in shown.get("templates", ())]
    return [*(_plain(root) if root is not None else ["no Zygote is running"]), *snapshots, *refused]


def snapshot(row: dict[str, Any]) -> str:
    """A version's snapshot: what it holds and saves, or why there is none."""
    words = f"{row['function']} {row['version']}: {row['state']}"
    if row["state"] != "serving":
        return f"{words}{': ' if row['reason'] else ''}{row['reason']}"
    return f"{words}  ({size(row['memory_bytes'])}; saves {row['init_s']:.2f} s each; {row['starts']} starts)"


def refusal(row: dict[str, Any]) -> str:
    """Why no Zygote imports a package for now, and until when; empty if that is not so."""
    if "reason" not in row:
        return ""
    where = f" (in a Zygote of {row['zygote']})" if row.get("zygote") else ""
    again = f"; tried again in {span(row['retry_in_s'])}" if "retry_in_s" in row else ""
    return f"{row['reason']}{where}{again}"


def _label(node: Node) -> str:
    """One Zygote in a line; what the worker did not say is left out."""
    facts = [
        f"{node['modules']} modules" if "modules" in node else "",
        f"{size(node['unique_memory_bytes'])} of its own" if "unique_memory_bytes" in node else "",
        f"{node['starts']} starts" if "starts" in node else "",
        f"{node['rate']:.2g}/s" if node.get("rate") else "",
        f"{node['spares']} spare{'' if node['spares'] == 1 else 's'}" if "spares" in node else "",
    ]
    network = node.get("network", "host")
    _, _, python = node.get("interpreter", "").partition(":")
    bare = " ".join(filter(None, ("Python", python)))
    if network != "host":
        bare = f"{bare}, for functions with network = {network}"
    return f"{', '.join(node['packages']) or bare}  ({'; '.join(fact for fact in facts if fact)})"


def _plain(node: Node, indent: str = "") -> Iterator[str]:
    if not indent:
        yield _label(node)
    children = node.get("children", ())
    for number, child in enumerate(children, start=1):
        last = number == len(children)
        below = f"{indent}{'    ' if last else '│   '}"
        yield f"{indent}{'└── ' if last else '├── '}{_label(child)}"
        yield from (f"{below}  passed over: {reason}" for reason in child.get("passed_over", ()))
        yield from _plain(child, below)
