"""`sockd config`: change settings of a function without its code and packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import network
from sockd.client.cli.functions.options import check_query, egress_option, egress_setting, no_check_option
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import json_option, print_json, say
from sockd.client.console.tables import print_table


@click.command()
@click.argument("name")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Time limit of a request.")
@click.option(
    "--init-timeout", "init_timeout_s", type=float, metavar="S", help="Time limit of the import of the handler."
)
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory limit of a sandbox.")
@click.option("--concurrency", type=int, metavar="N", help="Maximum number of concurrent requests.")
@click.option(
    "--run",
    type=click.Choice(["open", "keys", "off"]),
    help="Access to /run: all clients, clients with a key (sockd keys), or none.",
)
@click.option("--network", type=click.Choice(["host", "none", "private"]), help="The function's network.")
@egress_option
@click.option(
    "--writable-root/--read-only-root",
    default=None,
    help="Whether each sandbox may change its image's files, for itself.",
)
@click.option(
    "--snapshot/--no-snapshot",
    default=None,
    help="Whether starts are forked from a process that has run the function's init once.",
)
@no_check_option
@state_dir_option
@json_option
def config(name: str, egress: tuple[str, ...], no_check: bool, state_dir: Path, as_json: bool, **options: Any) -> None:
    """Show or change settings of a function.

    A change creates a version with the same code. Deploys keep it until their sockd.toml, or an option, names the setting.
    --egress alone creates none: the rules hold at once, for running sandboxes and all versions.
    A version whose starts differ is started once first, as by a deploy, and refused if it does not start where the one before
    does."""
    changes = {key: value for key, value in options.items() if value is not None} | egress_setting(egress)
    function = Management(state_dir).call(
        "PATCH", "functions", name, "settings", body=json.dumps(changes).encode(), query=check_query(no_check)
    )
    if changes.get("snapshot"):
        say_snapshot(function)
    if as_json:
        print_json(function)
        return
    print_table(
        ("name", "v", "timeout", "memory", "at once", "network", "run"),
        [
            (
                name,
                str(function["version_number"]),
                f"{function['timeout_s']:g} s",
                f"{function['memory_mb']} MB",
                str(function["concurrency"]),
                network(function["network"], function.get("egress"), has_private=function.get("has_private", False)),
                function.get("run") or "as http.run",
            )
        ],
    )


def say_snapshot(function: dict[str, Any]) -> None:
    """Say whether a function that is to have a snapshot has one."""
    name, reason = function["name"], function.get("snapshot_reason")
    if function.get("snapshot") == "serving":
        say(f"{name}: its starts come from a snapshot")
    else:
        say(f"{name} has no snapshot{f': {reason}' if reason else ' yet'}")
