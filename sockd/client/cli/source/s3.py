"""`sockd s3`: the S3 server for development, which is in the source tree (`benchmarks/s3`)."""

from __future__ import annotations

import os
import sys

import click

from sockd.client.cli.source.source_tree import environment


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def s3(arguments: tuple[str, ...]) -> None:
    """Run a small S3 server that verifies signatures, for development: sockd s3 [--port N] [--secret-key KEY] …; see --help."""
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.s3", *arguments], environment())
