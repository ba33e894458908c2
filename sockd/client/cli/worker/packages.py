"""`sockd packages`: the install cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size
from sockd.client.cli.observe.tree import refusal
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.inputs import TEXT_BYTES, read_file
from sockd.client.console.output import (
    NOT_FOUND,
    USAGE,
    Failure,
    echo_lines,
    json_option,
    print_json,
    progress,
    say,
    suggest,
)
from sockd.client.console.tables import print_table


@click.group()
def packages() -> None:
    """List, add and remove installed packages; retry packages that Zygotes could not import."""


@packages.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List installed packages, and why Zygotes do not import one."""
    rows = Management(state_dir).get("packages")
    if as_json:
        print_json(rows)
    elif not rows:
        suggest("no packages yet; a deploy installs what it needs, or", "sockd packages add NAME")
    else:
        headings = ("key", "size", "functions", "not in a Zygote because")
        print_table(headings, [_row(row) for row in rows], optional=("functions", "size"))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    differs = (f"differs, {refusal(each)}" for each in row.get("differs", ()))
    why = "; ".join(filter(None, (refusal(row), *differs)))
    return str(row["key"]), size(row["size_bytes"]), ", ".join(row.get("functions", ())), why


@packages.command()
@click.argument("requirement", nargs=-1)
@click.option("-r", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A requirements.txt.")
@state_dir_option
@json_option
def add(requirement: tuple[str, ...], file: Path | None, state_dir: Path, as_json: bool) -> None:
    """Install packages and their dependencies before a deploy needs them."""
    lines = [*requirement, *([read_file(file, TEXT_BYTES).decode(errors="replace")] if file else ())]
    if not lines:
        raise Failure("nothing to add", fix="sockd packages add numpy", exit_code=USAGE)
    management = Management(state_dir)
    with progress("resolving") as show:
        keys = management.result(management.lines("POST", "packages", body="\n".join(lines).encode()), show)
    if as_json:
        print_json(keys)
    else:
        echo_lines(keys)


@packages.command()
@click.argument("key")
@state_dir_option
@json_option
def rm(key: str, state_dir: Path, as_json: bool) -> None:
    """Remove a package that no function needs, by its key."""
    removed = Management(state_dir).call("DELETE", "packages", key)
    if as_json:
        print_json(removed)
    else:
        say(f"removed {key}")


@packages.command()
@click.argument("name", required=False)
@state_dir_option
@json_option
def forgive(name: str | None, state_dir: Path, as_json: bool) -> None:
    """Let Zygotes import a refused package again when a start needs it; without NAME, all refused packages."""
    forgiven = Management(state_dir).call("POST", "packages", "forgive", body=(name or "").encode())["forgiven"]
    if as_json and (forgiven or not name):
        print_json(forgiven)
    elif forgiven:
        echo_lines(f"forgiven: {key}" for key in forgiven)
    elif name:
        raise Failure(f"{name} is not refused", fix="sockd tree", exit_code=NOT_FOUND)
    else:
        say("no package is refused")
