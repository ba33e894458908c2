"""`sockd selftest`: the fault-injection suite of a source checkout, against a private worker on this machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from sockd.cli.output import USAGE, Failure

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("tests/abuse", "tests/faults", "tests/spec")


@click.command()
@click.option("--all", "everything", is_flag=True, help="The long cases, too.")
@click.option("--group", metavar="A,D", default="", help="Only these groups.")
@click.option("--case", "cases", metavar="A1,B3", default="", help="Only these cases, long ones too.")
@click.option("--json", "file", metavar="FILE", type=click.Path(path_type=Path), help="Write what happened.")
def selftest(everything: bool, group: str, cases: str, file: Path | None) -> None:
    """Attack and break a private worker on this machine, and tell case by case what came of it (root)."""
    folders = [name for name in FOLDERS if (REPOSITORY / name).is_dir()]
    if not folders:
        raise Failure("there is no suite here", why="it is in the source checkout, not in the package", exit_code=USAGE)
    lacking = [
        name for name in ("pytest", "pytest_timeout", "hypothesis", "blockbuster", "anyio") if not find_spec(name)
    ]
    if lacking:
        raise Failure(f"{', '.join(lacking)} not installed", fix="pip install -e '.[dev]'", exit_code=USAGE)
    if os.geteuid() != 0:
        raise Failure("a worker needs root", fix="sudo sockd selftest", exit_code=USAGE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.selftest", "-p", "no:cacheprovider"]
    command += ["-q", "--no-header", "--tb=short", "--show-capture=no", "-r", "N", *folders]
    command += ["--all"] * everything + [f"--group={group.upper()}"] * bool(group)
    command += [f"--case={cases.upper()}"] * bool(cases)
    if file is not None:
        command.append(f"--cases-json={file.resolve()}")
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    os.chdir(REPOSITORY)  # noqa: TID251  nothing else runs in this process
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
