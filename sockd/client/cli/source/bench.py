"""`sockd bench`: the benchmarks (`source_tree`)."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches

import click

from sockd.client.cli.source.source_tree import environment, installing, lacking, source_tree
from sockd.client.console.output import NOT_FOUND, USAGE, Failure, echo

LIBRARIES = ("boto3", "fastapi", "matplotlib", "uvicorn")
"""The libraries of the extra `bench`."""


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
        fix = f"sockd bench {close[0]}" if close else ""
        raise Failure(f"no benchmark {name!r}", why="there are " + ", ".join(names), fix=fix, exit_code=NOT_FOUND)
    if missing := lacking(LIBRARIES):
        raise Failure(f"{missing} not installed", fix=installing("bench"), exit_code=USAGE)
    os.execve(sys.executable, [sys.executable, "-m", f"benchmarks.{name}", *arguments], environment())


def _names() -> list[str]:
    """The modules of benchmarks/ that are benchmarks and not parts of one."""
    files = sorted((source_tree() / "benchmarks").glob("*.py"))
    return [file.stem for file in files if f'main("{file.stem}"' in file.read_text()]
