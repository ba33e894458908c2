"""`sockd env` and `sockd secret`: environment variables of a function, and its secrets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from sockd.client.cli.functions.options import check_query, no_check_option
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.inputs import TEXT_BYTES, read_stdin
from sockd.client.console.output import USAGE, Failure, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

MASK = "********"


@click.command()
@click.argument("name")
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a variable; may be repeated.")
@click.option("--show", is_flag=True, help="Also show values, except those of secrets.")
@no_check_option
@state_dir_option
@json_option
def env(
    name: str,
    assignments: tuple[str, ...],
    unset: tuple[str, ...],
    show: bool,
    no_check: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show or change the environment of a function.

    A change creates a version. Deploys keep it until the [env] of their sockd.toml names the variable; secrets remain anyway.
    The version is started once first, as by a deploy, and refused if it does not start where the one before does."""
    management = Management(state_dir)
    if assignments or unset:
        import json

        body = json.dumps({"set": _pairs(assignments), "unset": list(unset)}).encode()
        management.call("PATCH", "functions", name, "env", body=body, query=check_query(no_check))
    found = management.call("GET", "functions", name, "env", query={"values": "1"} if show else {})
    if as_json:
        print_json(found)
        return
    rows = [(key, MASK if value is None else value, "") for key, value in found["env"].items()]
    rows += [(key, MASK, "secret") for key in found["secrets"]]
    if rows:
        print_table(("name", "value", ""), rows)
    else:
        suggest(f"{name} has no environment; set a variable", f"sockd env {name} KEY=VALUE")


@click.group()
def secret() -> None:
    """Manage secrets: environment variables that survive deploys and are never shown."""


@secret.command("set")
@click.argument("name")
@click.argument("key")
@no_check_option
@state_dir_option
@json_option
def set_(name: str, key: str, no_check: bool, state_dir: Path, as_json: bool) -> None:
    """Set a secret of a function. Reads the value from stdin, or prompts for it."""
    if sys.stdin.isatty():
        value = click.prompt(f"{key}", hide_input=True, err=True)
    else:
        value = read_stdin(TEXT_BYTES).decode(errors="surrogateescape").removesuffix("\n")
    if not value:
        raise Failure("no value was given", fix=f"sockd secret set {name} {key} < FILE", exit_code=USAGE)
    body = value.encode(errors="surrogateescape")
    query = check_query(no_check)
    done = Management(state_dir).call("PUT", "functions", name, "secrets", key, body=body, query=query)
    if as_json:
        print_json(done)
    else:
        say(f"{name}: {key} is set")


@secret.command("rm")
@click.argument("name")
@click.argument("key")
@no_check_option
@state_dir_option
@json_option
def rm(name: str, key: str, no_check: bool, state_dir: Path, as_json: bool) -> None:
    """Remove a secret of a function."""
    query = check_query(no_check)
    done = Management(state_dir).call("DELETE", "functions", name, "secrets", key, query=query)
    if as_json:
        print_json(done)
    else:
        say(f"{name}: {key} is removed")


@secret.command("ls")
@click.argument("name", required=False)
@state_dir_option
@json_option
def ls(name: str | None, state_dir: Path, as_json: bool) -> None:
    """List the names of secrets, of one function or of all."""
    management = Management(state_dir)
    if name is None:
        found = management.get("secrets")
    else:
        found = {name: management.get("functions", name, "env")["secrets"]}
    if as_json:
        print_json(found)
        return
    rows = [(function, key) for function, keys in found.items() for key in keys]
    if rows:
        print_table(("function", "secret"), rows)
    else:
        suggest("no secrets yet; set one", "sockd secret set NAME KEY")


def _pairs(assignments: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE for each variable. Raises: Failure that names the place, and no value."""
    pairs: dict[str, str] = {}
    for number, item in enumerate(assignments, start=1):
        key, equals, value = item.partition("=")
        if not equals or not key:
            # The item is not repeated: it may be a value, as of KEY=two words without quotes.
            after = f", which follows {list(pairs)[-1]}=..." if pairs else ""
            raise Failure(
                f"variable {number} of {len(assignments)}{after} is not KEY=VALUE",
                why="a value with spaces needs quotes",
                fix="sockd env NAME 'KEY=VALUE'",
                exit_code=USAGE,
            )
        pairs[key] = value
    return pairs
