"""`sockd logs`: a function's output."""

from __future__ import annotations

import base64
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from sockd.base.printable import unix_lines
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.members import Members
from sockd.client.console.output import NOT_FOUND, Failure, echo, json_option, print_json, write_result
from sockd.client.console.times import since as time_of

_DASHES = re.compile(r"^---", re.MULTILINE)


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until Ctrl-C.")
@click.option("--since", metavar="TIME", help="Only newer output: 10s, 5m, 2h, 1d, or 2026-01-31T12:00.")
@click.option("--request", "request_id", metavar="ID", help="Only of this request: a prefix of its id.")
@click.option(
    "-n", "--limit", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Maximum number of requests."
)
@click.option("--raw", is_flag=True, help="Print the unchanged bytes only.")
@state_dir_option
@json_option
def logs(
    name: str,
    follow: bool,
    since: str | None,
    request_id: str | None,
    limit: int,
    raw: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show a function's output, by request; with -f line by line, while requests run. In a group, that of all workers.

    Control characters, and dashes at the beginning of a line, are escaped; --raw prints them unless stdout is a terminal. With
    --json: a list, or with -f one line per record."""
    members = Members.of(Management(state_dir))
    query = {
        "limit": str(limit),
        **({"request_id": request_id} if request_id else {}),
        **({"since": f"{time_of(since):.6f}"} if since else {}),
        **({"raw": "1"} if raw else {}),
    }
    show = _show_raw if raw else show_line_by_line if follow else _show
    if follow:
        with suppress(KeyboardInterrupt):  # the way to say that one has seen enough
            for record in members.lines("functions", name, "logs", query={**query, "follow": "1"}):
                print_json(record, indent=None) if as_json else show(record)
        return
    found = sorted(members.rows("functions", name, "logs", query=query), key=lambda record: record["time_s"])
    records = found[-limit:] if limit else []
    if request_id and not records:
        why = "it printed nothing, its output is no longer stored, or the id belongs to another function"
        fix = f"sockd trace {request_id}"
        raise Failure(f"{name} has no output of a request {request_id}", why=why, fix=fix, exit_code=NOT_FOUND)
    if as_json:
        print_json(records)
    else:
        for record in records:
            show(record)


def _show(record: dict[str, Any]) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time_s"]))
    version = f" version {record['version']}" if record.get("version") else ""
    worker = f" on {record['worker']}" if "worker" in record else ""
    echo(f"--- {when} {record['request_id']}{version}{worker}", dim=True)
    # A line of ours is one that begins with dashes: those of a function are escaped, or it could show another request's record.
    text = _DASHES.sub(r"\\x2d--", unix_lines(record["text"]))
    echo(text, nl=not text.endswith("\n"))
    if record["dropped_bytes"]:
        echo(f"--- {record['dropped_bytes']} bytes more were dropped (log_bytes)", dim=True)


def show_line_by_line(record: dict[str, Any]) -> None:
    """Follow the output. Lines of concurrent requests alternate, so each has its time and request id."""
    clock = time.strftime("%H:%M:%S", time.localtime(record["time_s"]))
    worker = f"{record['worker']} " if "worker" in record else ""
    begin = f"{clock}.{int(record['time_s'] * 1000) % 1000:03} {worker}{record['request_id'][:8]} "
    for line in record["text"].splitlines():
        echo(begin, dim=True, nl=False)
        echo(line, fg="red" if line.startswith("[ERROR]") else None)
    if record["dropped_bytes"]:
        echo(f"{begin}{record['dropped_bytes']} bytes more were dropped (log_bytes)", dim=True)


def _show_raw(record: dict[str, Any]) -> None:
    write_result(base64.b64decode(record["raw"]))
