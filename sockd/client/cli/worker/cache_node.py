"""`sockd cache-node`: a cache node of container images' chunks, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from sockd.client.console.output import USAGE, Failure, echo

_MAX_TOKEN_BYTES = 4096


@click.command("cache-node")
@click.option(
    "--listen", metavar="HOST:PORT", required=True, help="Address of the node; workers have it in images.nodes."
)
@click.option(
    "--memory-mb", type=click.IntRange(1), default=512, show_default=True, help="Memory for stripes of chunks."
)
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Also store stripes here.")
@click.option("--disk-mb", type=click.IntRange(1), default=4096, show_default=True, help="Disk for stripes in --dir.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The first line of this file is required in each request; workers have it in images.nodes_token_file.",
)
@click.option("--connections", type=click.IntRange(1), default=1024, show_default=True, help="Maximum open at a time.")
def cache_node(
    listen: str, memory_mb: int, directory: Path | None, disk_mb: int, token_file: Path | None, connections: int
) -> None:
    """Run a cache node for chunks of container images, until SIGTERM or Ctrl-C.

    Five or more nodes serve the workers of one network. The nodes store encrypted data and have no keys. They need no root, and
    no port of theirs should be reachable from other networks."""
    from sockd.base.errors import SockdError
    from sockd.images.caches.node import NodeSettings, parse_address, run_node

    try:
        host, port = parse_address(listen)
    except ValueError as error:
        raise Failure(f"--listen: {error}", exit_code=USAGE) from None
    settings = NodeSettings(host, port, memory_mb, directory, disk_mb, _token(token_file), connections)
    try:
        run_node(settings, lambda address: echo(f"cache node on {address}"))
    except SockdError as error:
        raise Failure("the node cannot start", why=error.message) from None
    except OSError as error:
        raise Failure("the node cannot start", why=f"{listen}: {error.strerror or error}") from None


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        token = file.read_bytes()[:_MAX_TOKEN_BYTES].decode().split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file} cannot be read", why=str(error), exit_code=USAGE) from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Failure(
            f"{file} has no token", why="its first line must be printable ASCII without spaces", exit_code=USAGE
        )
    return token
