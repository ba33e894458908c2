"""`sockd schedule`: functions that run by the clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from sockd.cli.client import Management, state_dir_option
from sockd.cli.invoke import payload_of
from sockd.cli.output import USAGE, Failure, age, json_option, print_json, print_table, say

HEADINGS = ("name", "function", "when", "zone", "next", "last")


@click.group()
def schedule() -> None:
    """Run functions by the clock.

    A tick survives a crash of the worker; of those that are missed while it is down, one is made up for."""


@schedule.command()
@click.argument("function", metavar="NAME[:ALIAS]")
@click.argument("expression")
@click.option("-d", "--data", default="{}", metavar="JSON|@FILE|-", help="The `detail` of its events.  [default: {}]")
@click.option("--timezone", default="UTC", show_default=True, help="Of a cron expression, such as Europe/Berlin.")
@click.option("--name", help="The schedule's own name; one that has it is replaced.  [default: the function's, once]")
@state_dir_option
@json_option
def add(
    function: str, expression: str, data: str, timezone: str, name: str | None, state_dir: Path, as_json: bool
) -> None:
    """Run a function by the clock, or give the schedule of that name another time.

    EXPRESSION is "rate(5 minutes)"; AWS's "cron(0 9 ? * MON-FRI *)"; or the five fields of cron, "0 9 * * 1-5". The event
    is that of EventBridge, with `time` and `detail`."""
    try:
        event = json.loads(payload_of(data))
    except ValueError as error:
        raise Failure("the event is not JSON", why=str(error), exit_code=USAGE) from None
    function, _, qualifier = function.partition(":")
    wanted: dict[str, Any] = {"function": function, "qualifier": qualifier, "expression": expression}
    wanted |= {"timezone": timezone, "event": event, "replace": name is not None}
    made = Management(state_dir).call("PUT", "schedules", name or function, body=json.dumps(wanted).encode())
    if as_json:
        print_json(made)
    else:
        say(f"{made['name']}: next {_moment(made['next_at'])}")


@schedule.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the schedules."""
    found = Management(state_dir).get("schedules")
    if as_json:
        print_json(found)
    elif not found:
        say('no schedules yet; make one: sockd schedule add NAME "rate(5 minutes)"')
    else:
        print_table(HEADINGS, [_row(each) for each in found])


@schedule.command()
@click.argument("name")
@state_dir_option
def rm(name: str, state_dir: Path) -> None:
    """Remove a schedule."""
    Management(state_dir).call("DELETE", "schedules", name)
    say(f"{name} is removed")


@schedule.command()
@click.argument("name")
@state_dir_option
def enable(name: str, state_dir: Path) -> None:
    """Have a schedule tick again."""
    _switch(name, state_dir, enabled=True)


@schedule.command()
@click.argument("name")
@state_dir_option
def disable(name: str, state_dir: Path) -> None:
    """Have a schedule tick no more, until it is enabled."""
    _switch(name, state_dir, enabled=False)


def _switch(name: str, state_dir: Path, *, enabled: bool) -> None:
    made = Management(state_dir).call("PATCH", "schedules", name, body=json.dumps({"enabled": enabled}).encode())
    say(f"{name}: next {_moment(made['next_at'])}" if made["enabled"] else f"{name} is disabled")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    following = _moment(each["next_at"]) if each["enabled"] else "disabled"
    last = age(time.time() - each["last_at"]) if each["last_at"] else "never"
    function = ":".join(filter(None, (each["function"], each["qualifier"])))
    return each["name"], function, each["expression"], each["timezone"], following, last


def _moment(at: float) -> str:
    """In the time zone of whoever reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "never"
