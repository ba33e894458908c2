"""`sockd ps`: the services, and what their programs do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.members import Members
from sockd.client.console.output import json_option, print_json, suggest
from sockd.client.console.tables import print_table
from sockd.client.console.times import short_ms

HEADINGS = (
    "name",
    "state",
    "v",
    "port",
    "up",
    "started in",
    "connections",
    "memory",
    "starts",
    "failures",
    "last failure",
)
OPTIONAL = ("started in", "port", "v", "starts", "memory")


@click.command()
@state_dir_option
@json_option
def ps(state_dir: Path, as_json: bool) -> None:
    """List the services, and what their programs do. In a group, on each worker."""
    services = Members.of(Management(state_dir)).rows("services")
    if as_json:
        print_json(services)
    elif not services:
        suggest('no services; a function with kind = "service" is one', "sockd ls")
    else:
        worker = ["worker"] if "worker" in services[0] else []
        headings = [*HEADINGS[:1], *worker, *HEADINGS[1:]]
        print_table(headings, [row_of(service) for service in services], optional=OPTIONAL)


def row_of(service: dict[str, Any]) -> tuple[str, ...]:
    """One service, a cell for each heading, and one for its worker if it has one."""
    runs, retry_s = bool(service["sandbox"]), service["retry_in_s"]
    draining = f" (+{service['draining']} draining)" if service["draining"] else ""
    again = f"; again in {short_ms(1000 * retry_s)}" if retry_s else ""
    return (
        service["name"],
        *([service["worker"]] if "worker" in service else []),
        service["state"] + draining,
        str(service["version"]),
        f"{service['published']} > {service['port']}" if service["published"] else str(service["port"]),
        short_ms(1000 * service["up_s"]) if runs else "-",
        short_ms(1000 * service["start_s"]) if runs else "-",
        str(service["connections"]),
        size(service["memory_bytes"]),
        str(service["starts"]),
        str(service["failures"]),
        service["port_reason"] or f"{service['reason']}{again}",
    )
