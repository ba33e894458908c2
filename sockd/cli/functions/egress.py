"""`--egress`: what a function with a private network may reach, as the commands take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

NOTHING = "none"

egress_option = click.option(
    "--egress",
    multiple=True,
    metavar="RULE",
    help="What a private network reaches: NETWORK, ADDRESS, NAME or internet, with :PORT; none: nothing. May be repeated.",
)


def egress_setting(given: Sequence[str]) -> dict[str, Any]:
    """The key of sockd.toml; empty if the option was not given."""
    if not given:
        return {}
    return {"egress": [] if list(given) == [NOTHING] else list(given)}
