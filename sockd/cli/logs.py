"""`sockd logs`: what a function has printed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from sockd.cli.client import Management, state_dir_option
from sockd.cli.output import json_option, print_json


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on as records come, until Ctrl-C.")
@click.option("--request", "request_id", metavar="ID", help="Only those of one request.")
@click.option("-n", "--limit", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Most requests.")
@state_dir_option
@json_option
def logs(name: str, follow: bool, request_id: str | None, limit: int, state_dir: Path, as_json: bool) -> None:
    """Show what a function has printed, request by request.

    With --json: a list, or with -f a line for each record."""
    management = Management(state_dir)
    query = {"limit": str(limit), **({"request_id": request_id} if request_id else {})}
    if follow:
        with suppress(KeyboardInterrupt):  # the way to say that one has seen enough
            for record in management.lines("GET", "functions", name, "logs", query={**query, "follow": "1"}):
                click.echo(json.dumps(record)) if as_json else _show(record)
        return
    records = management.get("functions", name, "logs", query=query)
    if as_json:
        print_json(records)
    else:
        for record in records:
            _show(record)


def _show(record: dict[str, Any]) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time_s"]))
    click.secho(f"--- {when} {record['request_id']}", dim=True)
    text = record["text"]
    click.echo(text, nl=not text.endswith("\n"))
    if record["dropped_bytes"]:
        click.secho(f"--- {record['dropped_bytes']} bytes more were dropped (log_bytes)", dim=True)
