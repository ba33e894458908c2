"""`--egress`: what a function with a private network may reach, as the commands take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from sockd.client.console.output import USAGE, Failure

NOTHING = "none"

egress_option = click.option(
    "--egress",
    multiple=True,
    metavar="RULE",
    help="What a private network reaches: NETWORK, ADDRESS, NAME or internet, with :PORT; none: nothing. May be repeated.",
)


def egress_setting(given: Sequence[str]) -> dict[str, Any]:
    """The key of sockd.toml; empty if the option was not given. Raises: Failure."""
    if not given:
        return {}
    if list(given) == [NOTHING]:
        return {"egress": []}
    _check(given)
    return {"egress": list(given)}


def _check(given: Sequence[str]) -> None:
    """Whether these are rules of any worker; its own limits are for itself to check. Raises: Failure."""
    from sockd.base.errors import BadFunctionConfig
    from sockd.isolation.networks import egress

    try:
        egress.parse(given, most=len(given))
    except BadFunctionConfig as error:
        raise Failure("invalid --egress", why=error.message, exit_code=USAGE) from None
