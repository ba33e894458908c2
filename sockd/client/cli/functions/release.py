"""The release of a new version by an alias: its options, as `sockd deploy` and `sockd alias` have them, and its steps.

A release is published and takes the place of the alias's version, or gets a share of its requests, as a canary, which the worker
promotes or withdraws by its errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from sockd.client.console.client import Management
from sockd.client.console.output import NOT_FOUND, USAGE, Failure
from sockd.client.console.times import seconds

LATEST = "$LATEST"
F = TypeVar("F", bound=Callable[..., Any])


def guard_options(command: F) -> F:
    """Add the options that guard a canary."""
    options = (
        click.option(
            "--rollback-on-errors",
            metavar="5%",
            help="Withdraw the canary when more of its requests fail; else promote it.",
        ),
        click.option("--promote-after", metavar="TIME", help="How long it must hold, as 30s or 2h.  [default: 10m]"),
        click.option("--least-requests", type=click.IntRange(1, 1000), help="How many it must serve.  [default: 20]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def guard_of(errors: str | None, after: str | None, least: int | None) -> dict[str, Any] | None:
    """Return the guard that the options ask for; None: none. Raises: Failure."""
    if errors is None:
        if after is not None or least is not None:
            fix = "add --rollback-on-errors 5%"
            raise Failure("--promote-after and --least-requests need a share of errors", fix=fix, exit_code=USAGE)
        return None
    guard: dict[str, Any] = {"most_errors": share(errors, "--rollback-on-errors")}
    if after is not None:
        guard["hold_s"] = seconds(after)
    if least is not None:
        guard["least_requests"] = least
    return guard


def share(text: str, option: str) -> float:
    """Return `10%`, `10` or `0.1` as 0.1. Raises: Failure."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    value /= 100 if text.endswith("%") or value >= 1 else 1
    if not 0 <= value < 1:
        raise Failure(f"{option} {text!r} is not a share such as 10%, below 100%", exit_code=USAGE)
    return value


def guard_words(guard: Mapping[str, Any] | None, version: str) -> str:
    """Say what a guard does, for the end of a line."""
    if guard is None:
        return ""
    return f"; {version} is withdrawn if more than {guard['most_errors'] * 100:.4g} % of them fail, and else promoted"


class Release(NamedTuple):
    """How a deploy is released."""

    alias: str
    canary: float | None = None
    """Its share of the alias's requests; None: all."""
    guard: Mapping[str, Any] | None = None

    @classmethod
    def of_options(
        cls, alias: str | None, canary: str | None, errors: str | None, after: str | None, least: int | None
    ) -> Release | None:
        """Return the release that the options ask for; None: none. Raises: Failure."""
        guard = guard_of(errors, after, least)
        if guard is not None and canary is None:
            raise Failure("--rollback-on-errors is about a canary", fix="add --canary 10%", exit_code=USAGE)
        if alias is None:
            if canary is not None:
                why = "an alias leads requests to two versions by share; /run/NAME is always the last deploy"
                raise Failure("--canary needs an alias", why=why, fix="add --alias ALIAS", exit_code=USAGE)
            return None
        return cls(alias, share(canary, "--canary") if canary is not None else None, guard)

    def check(self, management: Management, name: str) -> None:
        """Refuse, before anything is deployed, what the release could not be. Raises: Failure."""
        if self.canary is not None and self._leads_to(management, name) == LATEST:
            why = f"the alias leads to {LATEST}, which is the new deploy at once"
            fix = f"sockd publish {name} && sockd alias {name} {self.alias} VERSION"
            raise Failure(f"{name}:{self.alias} can have no canary", why=why, fix=fix, exit_code=USAGE)

    def run(self, management: Management, name: str) -> str:
        """Publish the last deploy, and point the alias to it; returns what was done, in words. Raises: Failure."""
        number = str(management.call("POST", "functions", name, "versions", body=b"{}")["version"])
        before = self._leads_to(management, name)
        body: dict[str, Any] = {"version": number}
        words = f"{name}:{self.alias} leads to version {number}"
        if self.canary is not None and before not in ("", number):
            body = {"version": before, "canary": {number: self.canary}}
            words = (
                f"{name}:{self.alias} leads to version {before}, {self.canary * 100:.4g} % of the requests to {number}"
            )
            if self.guard is not None:
                body["guard"] = dict(self.guard)
                words += guard_words(self.guard, number)
        management.call("PUT", "functions", name, "aliases", self.alias, body=json.dumps(body).encode())
        return words

    def _leads_to(self, management: Management, name: str) -> str:
        """The version that gets most of the alias's requests; empty: there is no such alias."""
        try:
            found = management.get("functions", name, "versions")
        except Failure as failure:
            if failure.exit_code != NOT_FOUND:
                raise
            return ""
        return next((str(each["version"]) for each in found["aliases"] if each["alias"] == self.alias), "")
