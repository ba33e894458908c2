"""`sockd cluster`: the proxy in front of a group, its upgrade, and a group on one machine for trying."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from sockd.base.own_command import same_as_root
from sockd.client.cli.cluster.haproxy import haproxy_file
from sockd.client.cli.cluster.local_cluster import LocalCluster
from sockd.client.cli.cluster.rolling import roll
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import USAGE, Failure, echo, say

_WORKER = re.compile(r"([A-Za-z0-9_.-]{1,64})=(\S+:[0-9]{1,5})")
MOST_WORKERS = 16


@click.group()
def cluster() -> None:
    """Write the proxy's file for a group of workers, replace its workers, or try a group on one machine."""


cluster.add_command(roll)


@cluster.command()
@click.argument("named", nargs=-1, metavar="[NAME=HOST:PORT]...")
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Address of the front."
)
@state_dir_option
def haproxy(named: tuple[str, ...], listen: str, state_dir: Path) -> None:
    """Print HAProxy's file for a group.

    Its workers are those named, or else those of this worker's group. All requests of a function go to one worker, and beyond 1.5
    times the mean load to the next; a worker that drains or is gone gets none. Write the file again and reload HAProxy when a
    worker is added."""
    addresses = dict(map(_parsed, named)) if named else _members(state_dir)
    echo(haproxy_file(addresses, listen).rstrip("\n"))


def _parsed(text: str) -> tuple[str, str]:
    found = _WORKER.fullmatch(text)
    if found is None:
        raise Failure(f"{text!r} is no worker", fix="sockd cluster haproxy w1=10.0.0.1:5000", exit_code=USAGE)
    return found[1], found[2]


def _members(state_dir: Path) -> dict[str, str]:
    rows = Management(state_dir).get("workers")
    return {row["name"]: row["address"] for row in rows if row["state"] != "gone"}


@cluster.command()
@click.option(
    "--workers", default=3, show_default=True, type=click.IntRange(1, MOST_WORKERS), help="Number of workers."
)
@click.option("--port", default=8080, show_default=True, type=click.IntRange(1, 65000), help="Port of the front.")
@click.option(
    "--directory",
    default="/var/lib/sockd-cluster",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="State of all of them.",
)
def up(workers: int, port: int, directory: Path) -> None:
    """Run a group on this machine, for trying.

    Runs PostgreSQL, workers and HAProxy until Ctrl-C. The workers listen on the ports behind the front's. A worker that ends is
    started again."""
    if os.geteuid() != 0:
        raise Failure("workers need root", why="they make namespaces, mounts and cgroups", fix=same_as_root())
    signal.signal(signal.SIGTERM, _interrupted)
    with ExitStack() as stack:
        local = LocalCluster(directory.absolute(), workers, port, stack)
        try:
            local.start()
            echo(f"the group serves at {local.url}")
            say(f"deploy to a worker: sockd deploy DIRECTORY --state-dir {local.state_dir('w1')}")
            local.watch()
        except KeyboardInterrupt:
            say("the group ends")


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
