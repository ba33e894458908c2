"""`sockd status`: the state of the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import json_option, print_json
from sockd.client.console.tables import print_table


@click.command()
@state_dir_option
@json_option
def status(state_dir: Path, as_json: bool) -> None:
    """Show the state of the worker."""
    fields = Management(state_dir).get("status")
    if as_json:
        print_json(fields)
    else:
        print_table(("", ""), list(_rows("", fields)))


def _rows(prefix: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _rows(f"{prefix}{key} ", value)
            continue
        label, _, unit = key.rpartition("_")
        if unit == "bytes" and isinstance(value, int):
            text = size(value)
        elif unit == "s" and isinstance(value, int | float):
            text = f"{value:.0f} s"
        else:
            label, text = key, str(value)
        # How many wait, and how many bytes that is, are two rows.
        yield prefix + (key if label != key and label in fields else label).replace("_", " "), text
