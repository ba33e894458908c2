"""`sockd url`: the URL of a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import echo, json_option, print_json, say

_AUTH = {"none": "NONE", "iam": "AWS_IAM"}
_MODE = {"buffered": "BUFFERED", "stream": "RESPONSE_STREAM"}


@click.command()
@click.argument("name")
@click.option(
    "--auth", type=click.Choice(list(_AUTH)), help="Who may call it: all clients, or clients that sign with a key."
)
@click.option("--mode", type=click.Choice(list(_MODE)), help="Buffer the answer, or stream it.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Allow pages of this origin; * allows all.")
@click.option("--qualifier", default="", metavar="ALIAS", help="Alias of the function.")
@click.option("--rm", is_flag=True, help="Remove the URL.")
@state_dir_option
@json_option
def url(
    name: str,
    auth: str | None,
    mode: str | None,
    cors: tuple[str, ...],
    qualifier: str,
    rm: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Print the URL of a function, and how to call it. Creates the URL if necessary.

    A new URL is open to every client of the port, like /run. --auth iam requires signatures for the URL, not for /run."""
    management = Management(state_dir)
    query = {"qualifier": qualifier} if qualifier else {}
    if rm:
        removed = management.call("DELETE", "functions", name, "url", query=query)
        if as_json:
            print_json(removed)
        else:
            say(f"removed the URL of {name}")
        return
    settings: dict[str, Any] = {}
    if auth:
        settings["auth"] = _AUTH[auth]
    if mode:
        settings["mode"] = _MODE[mode]
    if cors:
        settings["cors"] = {"AllowOrigins": list(cors), "AllowMethods": ["*"], "AllowHeaders": ["*"]}
    made = management.call("PUT", "functions", name, "url", body=json.dumps(settings).encode(), query=query)
    if as_json:
        print_json(made)
        return
    echo(made["url"])
    say(_curl(made))
    say(f"where names below localhost do not resolve: {made['path_url']}")


def _curl(made: dict[str, Any]) -> str:
    options = "-N " if made["mode"] == "RESPONSE_STREAM" else ""
    if made["auth"] == "AWS_IAM":
        options += "--aws-sigv4 aws:amz:local:lambda --user KEY:SECRET "
    return f"curl {options}{made['url']}"
