"""`--no-check`: change a function without a first start of its new version, as the commands take it."""

from __future__ import annotations

import click

no_check_option = click.option(
    "--no-check", is_flag=True, help="Do not start the new version once before requests go to it."
)


def check_query(no_check: bool) -> dict[str, str]:
    """Return the query of a change; nothing is said of the default."""
    return {"check": "0"} if no_check else {}
