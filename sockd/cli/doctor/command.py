"""`sockd doctor`: the checks of `sockd.cli.doctor.report`, printed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sockd.console.client import refuse_elsewhere, state_dir_option
from sockd.console.output import FAILED, console, echo, json_option, print_json

MARKS = {True: "ok  ", False: "FAIL", None: "note"}


@click.command()
@state_dir_option
@json_option
def doctor(state_dir: Path, as_json: bool) -> None:
    """Check this machine, and print how to fix what is missing.

    Exits 1 if a worker cannot run on this machine."""
    refuse_elsewhere("sockd doctor")
    from sockd.cli.doctor.report import as_dicts, render, run_checks

    checks = run_checks(state_dir)
    if as_json:
        print_json(as_dicts(checks))
    elif sys.stdout.isatty():
        console().print(render(checks))
    else:
        for check in checks:
            echo(f"{MARKS[check.ok]}  {check.name}: {check.found}" + (f"\n      fix: {check.fix}" if check.fix else ""))
    if any(check.ok is False for check in checks):
        sys.exit(FAILED)
