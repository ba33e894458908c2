"""Options of several commands that change a function, and what they say of them to the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from sockd.client.console.output import USAGE, Failure

NOTHING = "none"

no_check_option = click.option(
    "--no-check", is_flag=True, help="Do not start the new version once before requests go to it."
)
egress_option = click.option(
    "--egress",
    multiple=True,
    metavar="RULE",
    help="What a private network reaches: NETWORK, ADDRESS, NAME or internet, with :PORT; none: nothing. May be repeated.",
)


def check_query(no_check: bool) -> dict[str, str]:
    """Return the query of a change; nothing is said of the default."""
    return {"check": "0"} if no_check else {}


def egress_setting(given: Sequence[str]) -> dict[str, Any]:
    """The key of sockd.toml that says what a private network reaches; empty if the option was not given. Raises: Failure."""
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
