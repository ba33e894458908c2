"""`sockd events`: asynchronous invocations and dead letters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import USAGE, Failure, age, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

HEADINGS = ("id", "function", "state", "tries", "accepted", "why")
function_option = click.option("--function", metavar="NAME", help="Only of this function.")
id_argument = click.argument("event_id", metavar="[ID]", required=False)
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@click.group()
def events() -> None:
    """Show and manage asynchronous invocations and dead letters, which ended without success."""


@events.command()
@click.option("--state", type=click.Choice(["all", "waiting", "dead"]), default="all", show_default=True)
@function_option
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@state_dir_option
@json_option
def ls(state: str, function: str | None, limit: int, state_dir: Path, as_json: bool) -> None:
    """List waiting and running events, and dead letters."""
    query = {"state": state, "limit": str(limit), **({"function": function} if function else {})}
    management = Management(state_dir)
    found = management.get("events", query=query)
    if function and not found:
        management.check_function(function)
    if as_json:
        print_json(found)
    elif not found:
        suggest("no events; make one", "sockd invoke NAME --async")
    else:
        print_table(HEADINGS, [_row(each) for each in found], optional=("accepted", "tries"))


@events.command()
@click.argument("event_id", metavar="ID")
@state_dir_option
@json_option
def show(event_id: str, state_dir: Path, as_json: bool) -> None:
    """Show a waiting or running event or a dead letter, with its payload, as JSON."""
    print_json(Management(state_dir).get("events", event_id))


@events.command()
@id_argument
@function_option
@all_option
@state_dir_option
@json_option
def retry(event_id: str | None, function: str | None, everything: bool, state_dir: Path, as_json: bool) -> None:
    """Run dead letters again: one, those of a function, or all."""
    path, query = _wanted(event_id, function, everything)
    management = Management(state_dir)
    retried = management.call("POST", "events", *path, "retry", query=query)["retried"]
    if function and not retried:
        management.check_function(function)
    if as_json:
        print_json({"retried": retried})
        return
    suggest(f"{retried} queued again; see", "sockd events ls")


@events.command()
@id_argument
@function_option
@all_option
@state_dir_option
@json_option
def rm(event_id: str | None, function: str | None, everything: bool, state_dir: Path, as_json: bool) -> None:
    """Delete dead letters: one, those of a function, or all."""
    path, query = _wanted(event_id, function, everything)
    management = Management(state_dir)
    deleted = management.call("DELETE", "events", *path, query=query)["deleted"]
    if function and not deleted:
        management.check_function(function)
    if as_json:
        print_json({"deleted": deleted})
    else:
        say(f"{deleted} are deleted")


@events.command()
@click.argument("function")
@click.option("--retries", type=click.IntRange(0), help="Retries after errors of the function.  [default: 2]")
@click.option("--max-age", type=click.IntRange(1), metavar="SECONDS", help="Maximum age of an event.  [default: 21600]")
@click.option("--on-success", default="", metavar="DESTINATION", help="Destination: a function, or directory:NAME.")
@click.option(
    "--on-failure",
    default="",
    metavar="DESTINATION",
    help="Destination; without one, failed events become dead letters.",
)
@click.option("--reset", is_flag=True, help="Restore the defaults.")
@state_dir_option
@json_option
def config(
    function: str,
    retries: int | None,
    max_age: int | None,
    on_success: str,
    on_failure: str,
    reset: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show or set retries and destinations of a function's events. Omitted options get their defaults."""
    management, path = Management(state_dir), ("functions", function, "event-invoke-config")
    wanted = {"max_retries": retries, "max_age_s": max_age, "on_success": on_success, "on_failure": on_failure}
    if reset:
        management.call("DELETE", *path)
    elif any(value not in (None, "") for value in wanted.values()):
        management.call("PUT", *path, body=json.dumps(wanted).encode())
    found = management.get(*path)
    if not found:
        management.check_function(function)
    if as_json:
        print_json(found)
    elif not found:
        say(f"the events of {function} end by the worker's defaults")
    else:
        headings = ("version", "retries", "max age", "on success", "on failure")
        print_table(headings, [_config_row(each) for each in found], optional=("max age", "retries"))


def _config_row(each: dict[str, Any]) -> tuple[str, ...]:
    numbers = ("default" if each[key] is None else str(each[key]) for key in ("max_retries", "max_age_s"))
    return each["qualifier"], *numbers, each["on_success"] or "-", each["on_failure"] or "dead letters"


def _wanted(event_id: str | None, function: str | None, everything: bool) -> tuple[list[str], dict[str, str]]:
    """The selected dead letters, as path and query. Raises: Failure."""
    if sum((event_id is not None, function is not None, everything)) != 1:
        raise Failure("select a dead letter, --function NAME, or --all", fix="sockd events ls", exit_code=USAGE)
    return ([event_id] if event_id else []), ({"function": function} if function else {})


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    why = " ".join(filter(None, (each.get("reason"), each.get("error_type")))) or each["source"]
    accepted = age(time.time() - each["accepted_at"])
    return each["id"], each["function"], each["state"], str(each["attempts"]), accepted, why
