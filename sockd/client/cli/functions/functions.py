"""`sockd ls` and `sockd rm`: deployed functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.members import Members
from sockd.client.console.output import age, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

HEADINGS = ("name", "v", "handler", "memory", "timeout", "at once", "network", "pkgs", "code", "updated")
READY = "ready"
MOST_REASONS = 5
"""Why functions cannot run is printed for so many."""
OPTIONAL = ("code", "network", "pkgs", "at once", "handler", "memory", "timeout", "updated", "v")


@click.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the functions. In a group, a state that differs among the workers is shown with those that have it."""
    members = Members.of(Management(state_dir))
    rows = members.rows("functions")
    functions = merged(rows) if members.are_several else rows
    if as_json:
        print_json(functions)
    elif not functions:
        suggest("no functions yet; deploy one", "sockd deploy DIR")
    else:
        _print(functions)
        unready = [function for function in functions if _state(function) != READY]
        for function in unready[:MOST_REASONS]:
            say(f"{function['name']} cannot run{_where(function)}: {function['state_reason']}")
        for function in functions:
            if function.get("snapshot") in ("refused", "evicted"):
                say(f"{function['name']} has no snapshot{_where(function)}: {function['snapshot_reason']}")
        if len(unready) > MOST_REASONS:
            suggest(f"{len(unready) - MOST_REASONS} more cannot run; why", "sockd ls --json")


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each function and state that workers have of it, with the `workers` that have it."""
    of_state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["name"]):
        worker = row.pop("worker")
        state = tuple(row.get(key) for key in ("name", "version_number", "state", "snapshot"))
        of_state.setdefault(state, {**row, "workers": []})["workers"].append(worker)
    return list(of_state.values())


def _where(function: dict[str, Any]) -> str:
    """Return on which workers that is so, in a group."""
    return f" on {', '.join(function['workers'])}" if "workers" in function else ""


def _print(functions: list[dict[str, Any]]) -> None:
    """The table, with a column of states if a function cannot run."""
    headings, rows = list(HEADINGS), [list(_row(function)) for function in functions]
    if len({function["name"] for function in functions}) < len(functions):
        headings.insert(1, "workers")
        for row, function in zip(rows, functions, strict=True):
            row.insert(1, ", ".join(function["workers"]))
    if any(_state(function) != READY for function in functions):
        headings.insert(1, "state")
        for row, function in zip(rows, functions, strict=True):
            row.insert(1, _state(function))
    print_table(headings, rows, optional=OPTIONAL)


def _state(function: dict[str, Any]) -> str:
    """What it lacks; an older worker, elsewhere, does not say."""
    return str(function.get("state", READY))


def _row(function: dict[str, Any]) -> tuple[str, ...]:
    packages, code_bytes, updated_at = function["packages"], function["code_bytes"], function["updated_at"]
    assert isinstance(packages, list)
    assert isinstance(code_bytes, int)
    assert isinstance(updated_at, int | float)
    return (
        str(function["name"]),
        str(function["version_number"]),
        f"image {short_image(str(function['image']))}" if function.get("image") else str(function["handler"]),
        f"{function['memory_mb']} MB",
        f"{function['timeout_s']:g} s",
        str(function["concurrency"]),
        str(function["network"]),
        str(len(packages)),
        size(code_bytes),
        age(time.time() - updated_at),
    )


@click.command()
@click.argument("name")
@state_dir_option
@json_option
def rm(name: str, state_dir: Path, as_json: bool) -> None:
    """Remove a function. Running requests finish."""
    removed = Management(state_dir).call("DELETE", "functions", name)
    if as_json:
        print_json(removed)
    else:
        say(f"removed {name}")


def short_image(image: str) -> str:
    """An image as its settings name it; of a digest the first digits."""
    return image.removeprefix("sha256:")[:12] if image.startswith("sha256:") else image
