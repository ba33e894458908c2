"""`sockd cluster roll`: replace the workers of a group one after the other, each when the one before serves again.

Owns nothing: what replaces a worker is a command of the user's.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import Failure, echo

LOOK_S = 0.2
EXAMPLE = "sockd cluster roll -- ssh {host} systemctl restart sockd"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--within",
    "within_s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds until a replaced worker serves.",
)
@state_dir_option
def roll(command: tuple[str, ...], within_s: float, state_dir: Path) -> None:
    """Replace the workers of the group one after the other: sockd cluster roll -- COMMAND.

    COMMAND runs once for each worker, with its {name} and the {host} of its address: it installs the new version there and
    restarts the worker, as in: ssh {host} systemctl restart sockd. The next one's turn comes when the worker serves again;
    the first failure ends all."""
    for row in _members(state_dir):
        if row["state"] != "gone":
            _replace(row, command)
            _await_serving(state_dir, row["name"], within_s)
            echo(f"{row['name']} serves again")


def _members(state_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Management(state_dir).get("workers")
    return rows


def _replace(row: dict[str, Any], command: Sequence[str]) -> None:
    """Run the command for a worker. Raises: Failure: it has failed."""
    host = row["address"].rpartition(":")[0].strip("[]")
    words = [word.replace("{name}", row["name"]).replace("{host}", host) for word in command]
    try:
        status = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise Failure(f"{words[0]} cannot be run", why=str(error.strerror), fix=EXAMPLE) from None
    if status:
        raise Failure(
            f"the command for {row['name']} ended with status {status}", fix="run it by itself, then roll again"
        )


def _await_serving(state_dir: Path, name: str, within_s: float) -> None:
    """Wait until a worker has reported that it serves, after now. Raises: Failure: it does not."""
    began_s, pause = time.monotonic(), threading.Event()
    while (passed_s := time.monotonic() - began_s) < within_s:
        with suppress(Failure):  # the worker that is asked may be the one that is replaced
            if any(row["name"] == name and _serves_since(row, passed_s) for row in _members(state_dir)):
                return
        pause.wait(LOOK_S)
    raise Failure(f"{name} does not serve after {within_s:g} s", fix="see its log, and roll again when it serves")


def _serves_since(row: dict[str, Any], passed_s: float) -> bool:
    return bool(row["state"] == "serving" and row["seen_s"] < passed_s)
