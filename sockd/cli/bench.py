"""`sockd bench`: the benchmarks of a source checkout."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from sockd.cli.output import USAGE, Failure, echo

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(name: str | None, arguments: tuple[str, ...]) -> None:
    """Run a benchmark: sockd bench NAME [--quick] [--json FILE] [--plot DIR]; without NAME, list them."""
    names = _names()
    if name in ("-h", "--help", None):
        echo("usage: sockd bench NAME [--quick] [--json FILE] [--plot DIR]\n\nbenchmarks: " + ", ".join(names))
        return
    assert name is not None
    if name not in names:
        close = get_close_matches(name, names, n=1)
        why = "there are " + ", ".join(names) if names else "benchmarks are in the source checkout, not in the package"
        fix = f"sockd bench {close[0]}" if close else ""
        raise Failure(f"no benchmark {name!r}", why=why, fix=fix, exit_code=USAGE)
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


def _names() -> list[str]:
    """The modules of benchmarks/ that are benchmarks and not parts of one."""
    files = sorted((REPOSITORY / "benchmarks").glob("*.py"))
    return [file.stem for file in files if f'main("{file.stem}"' in file.read_text()]
