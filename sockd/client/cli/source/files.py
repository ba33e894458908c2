"""`sockd files`: paths of the files that come with sockd."""

from __future__ import annotations

import click

from sockd.client.cli.source.source_tree import source_tree
from sockd.client.console.output import echo, json_option, print_json

FILES = {
    "docs": "docs",
    "readme": "README.md",
    "specification": "SPECIFICATION.md",
    "security": "SECURITY.md",
    "unit": "systemd/sockd.service",
    "socket": "systemd/sockd.socket",
    "configuration": "systemd/sockd.toml",
    "benchmarks": "benchmarks",
    "demo": "demo",
    "tests": "tests",
}


@click.command()
@click.argument("name", required=False, type=click.Choice(list(FILES)))
@json_option
def files(name: str | None, as_json: bool) -> None:
    """Print the paths of the files that come with sockd: documentation, systemd units and their configuration, benchmarks, tests.

    With a NAME, print one path, as in: cp "$(sockd files unit)" /etc/systemd/system/"""
    paths = {each: str(source_tree() / path) for each, path in FILES.items()}
    if as_json:
        print_json(paths)
    elif name:
        echo(paths[name])
    else:
        for each, path in paths.items():
            echo(f"{each:<14}{path}")
