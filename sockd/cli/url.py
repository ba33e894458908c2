"""`sockd url`: give a function a URL of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sockd.console.client import Management, state_dir_option
from sockd.console.output import echo, json_option, print_json, say

_AUTH = {"none": "NONE", "iam": "AWS_IAM"}
_MODE = {"buffered": "BUFFERED", "stream": "RESPONSE_STREAM"}


@click.command()
@click.argument("name")
@click.option("--auth", type=click.Choice(list(_AUTH)), help="Who may call it: anybody, or who signs with a key.")
@click.option("--mode", type=click.Choice(list(_MODE)), help="Send the answer when it is whole, or as it comes.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Pages of this origin may call it; * for all of them.")
@click.option("--qualifier", default="", metavar="ALIAS", help="The URL of an alias.")
@click.option("--rm", is_flag=True, help="Take the URL back.")
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
    """Print the URL of a function, made if it has none yet, and how to call it.

    A new URL is open to whoever reaches the worker's port, as /run is; --auth iam asks for signatures, and leaves
    /run as it is."""
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
