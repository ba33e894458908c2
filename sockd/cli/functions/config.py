"""`sockd config`: change settings of a function without its code and packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sockd.console.client import Management, state_dir_option
from sockd.console.output import json_option, print_json
from sockd.console.tables import print_table


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
@state_dir_option
@json_option
def config(name: str, state_dir: Path, as_json: bool, **options: Any) -> None:
    """Show or change settings of a function.

    A change creates a version with the same code. The next deploy replaces it by the settings of its sockd.toml."""
    changes = {key: value for key, value in options.items() if value is not None}
    function = Management(state_dir).call("PATCH", "functions", name, "settings", body=json.dumps(changes).encode())
    if as_json:
        print_json(function)
        return
    print_table(
        ("name", "v", "timeout", "memory", "at once", "run"),
        [
            (
                name,
                str(function["version_number"]),
                f"{function['timeout_s']:g} s",
                f"{function['memory_mb']} MB",
                str(function["concurrency"]),
                function.get("run") or "as http.run",
            )
        ],
    )
