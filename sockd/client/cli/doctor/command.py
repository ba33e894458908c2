"""`sockd doctor`: the checks of `sockd.client.cli.doctor.report`, printed."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from sockd.client.cli.worker.configuration import config_option, configured
from sockd.client.console.client import refuse_elsewhere, state_dir_option
from sockd.client.console.output import FAILED, Failure, console, echo, json_option, print_json

MARKS = {True: "ok  ", False: "FAIL", None: "note"}


@click.command()
@state_dir_option
@config_option
@json_option
@click.option(
    "--apparmor", is_flag=True, help="Print a profile that lets sockd make user namespaces, and check nothing."
)
@click.pass_context
def doctor(context: click.Context, state_dir: Path, config: Path | None, as_json: bool, apparmor: bool) -> None:
    """Check this machine, and print how to fix what is missing.

    Exits 1 if a worker cannot run on this machine. With --config, the settings of [images] are tried, too."""
    refuse_elsewhere("sockd doctor")
    if apparmor:
        echo(_profile(), nl=False)
        return
    from sockd.client.cli.doctor.report import as_dicts, render, run_checks

    is_given = context.get_parameter_source("state_dir") is not ParameterSource.DEFAULT
    settings = configured(config, state_dir=str(state_dir) if is_given else None)
    checks = run_checks(Path(settings.state_dir), settings.images)
    if as_json:
        print_json(as_dicts(checks))
    elif sys.stdout.isatty():
        console().print(render(checks))
    else:
        for check in checks:
            echo(f"{MARKS[check.ok]}  {check.name}: {check.found}" + (f"\n      fix: {check.fix}" if check.fix else ""))
    if any(check.ok is False for check in checks):
        sys.exit(FAILED)


def _profile() -> str:
    from sockd.client.cli.doctor.security_modules import apparmor_profile

    try:
        return apparmor_profile()
    except ValueError as error:
        raise Failure(str(error)) from None
