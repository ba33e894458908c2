"""`sockd schedule`: functions that run on a schedule."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from sockd.client.cli.calls.invoke import payload_of
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import NOT_FOUND, USAGE, Failure, age, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

HEADINGS = ("name", "function", "when", "zone", "next", "last")
OPTIONAL = ("last", "zone", "function")
"""`next` is printed in the schedule's own time zone, which it names."""


@click.group()
def schedule() -> None:
    """Run functions on a schedule.

    Ticks survive a crash of the worker. After a downtime, one missed tick runs."""


@schedule.command()
@click.argument("function", metavar="NAME[:ALIAS]")
@click.argument("expression")
@click.option("-d", "--data", default="{}", metavar="JSON|@FILE|-", help="`detail` of the events.  [default: {}]")
@click.option(
    "--timezone", default="UTC", show_default=True, help="Time zone of a cron expression, such as Europe/Berlin."
)
@click.option(
    "--name", help="The schedule's name; replaces one of this name.  [default: the function's, for its first schedule]"
)
@state_dir_option
@json_option
def add(
    function: str, expression: str, data: str, timezone: str, name: str | None, state_dir: Path, as_json: bool
) -> None:
    """Create or replace a schedule of a function.

    EXPRESSION is "rate(5 minutes)"; AWS's "cron(0 9 ? * MON-FRI *)"; or the five fields of cron, "0 9 * * 1-5". The event
    is that of EventBridge, with `time` and `detail`."""
    try:
        event = json.loads(payload_of(data))
    except ValueError as error:
        raise Failure("the event is not JSON", why=str(error), exit_code=USAGE) from None
    function, _, qualifier = function.partition(":")
    wanted: dict[str, Any] = {"function": function, "qualifier": qualifier, "expression": expression}
    wanted |= {"timezone": timezone, "event": event, "replace": name is not None}
    management = Management(state_dir)
    try:
        made = management.call("PUT", "schedules", name or function, body=json.dumps(wanted).encode())
    except Failure as failure:
        if failure.exit_code == NOT_FOUND:
            management.check_function(function)  # its failure names the command that lists functions
        raise
    if as_json:
        print_json(made)
    else:
        say(f"{made['name']}: next {moment(made['next_at'], made['timezone'])}")


@schedule.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the schedules."""
    found = Management(state_dir).get("schedules")
    if as_json:
        print_json(found)
    elif not found:
        suggest("no schedules yet; make one", 'sockd schedule add NAME "rate(5 minutes)"')
    else:
        print_table(HEADINGS, [_row(each) for each in found], optional=OPTIONAL)


@schedule.command()
@click.argument("name")
@state_dir_option
@json_option
def rm(name: str, state_dir: Path, as_json: bool) -> None:
    """Remove a schedule."""
    removed = Management(state_dir).call("DELETE", "schedules", name)
    if as_json:
        print_json(removed)
    else:
        say(f"{name} is removed")


@schedule.command()
@click.argument("name")
@state_dir_option
@json_option
def enable(name: str, state_dir: Path, as_json: bool) -> None:
    """Enable a schedule."""
    _switch(name, state_dir, as_json, enabled=True)


@schedule.command()
@click.argument("name")
@state_dir_option
@json_option
def disable(name: str, state_dir: Path, as_json: bool) -> None:
    """Disable a schedule until it is enabled again."""
    _switch(name, state_dir, as_json, enabled=False)


def _switch(name: str, state_dir: Path, as_json: bool, *, enabled: bool) -> None:
    made = Management(state_dir).call("PATCH", "schedules", name, body=json.dumps({"enabled": enabled}).encode())
    if as_json:
        print_json(made)
        return
    say(f"{name}: next {moment(made['next_at'], made['timezone'])}" if made["enabled"] else f"{name} is disabled")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    following = moment(each["next_at"], each["timezone"]) if each["enabled"] else "disabled"
    last = age(time.time() - each["last_at"]) if each["last_at"] else "never"
    function = ":".join(filter(None, (each["function"], each["qualifier"])))
    return each["name"], function, each["expression"], each["timezone"], following, last


def moment(at: float, timezone: str) -> str:
    """A time as a clock of that time zone shows it, with the zone's name."""
    if not at:
        return "never"
    try:
        zone: tzinfo = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError):  # the worker knows zones that this machine does not
        zone = UTC
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S %Z")
