"""`sockd keys`: access keys for clients on other machines."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import echo, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

RIGHTS = ("read", "invoke", "deploy")


@click.group()
def keys() -> None:
    """Create, list and revoke keys of this worker, on its own host.

    sockd login uses a key, and so do clients of /run, /status and /metrics where these require one."""


@keys.command()
@click.argument("name")
@click.option(
    "--may",
    multiple=True,
    type=click.Choice(RIGHTS),
    required=True,
    help="A permission; may be repeated. deploy includes removing and configuring, read includes logs and events.",
)
@click.option("--function", "functions", multiple=True, metavar="NAME", help="Only for this function; may be repeated.")
@state_dir_option
@json_option
def add(name: str, may: tuple[str, ...], functions: tuple[str, ...], state_dir: Path, as_json: bool) -> None:
    """Create a key and print it once; the worker stores only its hash."""
    wanted = json.dumps({"name": name, "may": may, "functions": functions}).encode()
    made = Management(state_dir).call("POST", "keys", body=wanted)
    if as_json:
        print_json(made)
        return
    say(
        f"the key {name!r} may {', '.join(may)}{' of ' + ', '.join(functions) if functions else ''}; it is not shown again:"
    )
    echo(made["key"])


@keys.command("ls")
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    found = Management(state_dir).get("keys")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            f"sockd_{each['id']}_",
            ", ".join(each["may"]),
            ", ".join(each["functions"]) or "all functions",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["made_at"])),
        )
        for each in found
    ]
    if rows:
        print_table(("name", "begins with", "may", "for", "made"), rows, optional=("made", "begins with"))
    else:
        suggest("no keys yet; create one", "sockd keys add NAME --may invoke")


@keys.command()
@click.argument("name")
@state_dir_option
@json_option
def rm(name: str, state_dir: Path, as_json: bool) -> None:
    """Revoke a key. It does not end streams that are open."""
    revoked = Management(state_dir).call("DELETE", "keys", name)
    if as_json:
        print_json(revoked)
    else:
        echo(f"revoked {name}")
