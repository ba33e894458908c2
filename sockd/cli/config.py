"""`sockd config`: settings of a function, changed alone; its code and packages stay."""

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
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Longest time of one request.")
@click.option("--init-timeout", "init_timeout_s", type=float, metavar="S", help="Longest time of its start.")
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory of one sandbox.")
@click.option("--concurrency", type=int, metavar="N", help="Most requests at once.")
@click.option("--run", type=click.Choice(["open", "keys", "off"]), help="Who may call it at /run: see sockd keys.")
@state_dir_option
@json_option
def config(name: str, state_dir: Path, as_json: bool, **options: Any) -> None:
    """Change settings of a function, or show them.

    A change is a new version with the same code. The next deploy brings what its sockd.toml says."""
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
