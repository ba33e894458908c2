"""`sockd workers` and `sockd drain`: the workers of a group, and the place of one behind its proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import echo, json_option, print_json, say
from sockd.client.console.tables import print_table

HEADINGS = (
    "worker",
    "address",
    "state",
    "running",
    "queued",
    "memory",
    "functions",
    "events",
    "share",
    "revision",
    "seen",
    "version",
    "settings",
)


@click.command()
@state_dir_option
@json_option
def workers(state_dir: Path, as_json: bool) -> None:
    """List the workers of the group.

    share: of the concurrency and the provisioned sandboxes of each function. revision: the last change of functions and keys that
    the worker has read. Workers whose settings column is the same have the same configuration, but for names, addresses and
    directories."""
    rows = Management(state_dir).get("workers")
    if as_json:
        print_json(rows)
        return
    print_table(
        HEADINGS, [_row(row) for row in rows], optional=("memory", "functions", "queued", "settings", "revision")
    )
    if len({row.get("configuration") for row in rows if row["state"] != "gone"}) > 1:
        say("the workers have different settings")


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    def of(key: str) -> str:
        return str(row.get(key, ""))

    state = f"gone, its events: {row['taken_by']}" if row["taken_by"] else of("state")
    memory = f"{row['memory']:.0%}" if "memory" in row else ""
    share = f"1/{row['divisor']}" if "divisor" in row else ""
    numbers = (of("running"), of("queued"), memory, of("functions"), of("events"), share, of("revision"))
    return of("name"), of("address"), state, *numbers, f"{row['seen_s']:.0f} s ago", of("version"), of("configuration")


@click.command()
@click.option("--end", is_flag=True, help="Take it back: have the proxy send requests again.")
@state_dir_option
@json_option
def drain(end: bool, state_dir: Path, as_json: bool) -> None:
    """Have a proxy in front send this worker no more requests.

    Its /healthz answers 503 until it starts again or until --end. It serves what comes all the same, and runs its events."""
    answer = Management(state_dir).call("DELETE" if end else "PUT", "drain")
    if as_json:
        print_json(answer)
    else:
        echo(
            "/healthz answers 503: a proxy sends no more requests"
            if answer["draining"]
            else "/healthz answers 200 again"
        )
