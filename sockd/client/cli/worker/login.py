"""`sockd login` and `sockd logout`: this user's keys for workers on other machines."""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import closing

import click

from sockd.client.console.client import no_management
from sockd.client.console.output import NOT_FOUND, UNREACHABLE, USAGE, Failure, echo
from sockd.client.python.workers import (
    KEY_VARIABLE,
    WORKER_VARIABLE,
    BadLogin,
    RemoteWorker,
    address,
    credentials_file,
    forget,
    keep,
)

_DEADLINE_S = 30.0
_MAX_ANSWER_BYTES = 64 * 1024
_MAX_KEY_CHARS = 256


@click.command()
@click.argument("url")
@click.option("--plain-http", is_flag=True, help="Allow http to another machine: the key is sent unencrypted.")
def login(url: str, plain_http: bool) -> None:
    """Verify and store a key for a worker on another machine.

    URL is the public address of the worker's management port (management.listen). Reads the key from stdin or SOCKD_KEY. Other
    commands use the worker with --worker URL, or SOCKD_WORKER=URL."""
    try:
        where = address(url, plain_http=plain_http)
        key = os.environ.get(KEY_VARIABLE) or _read_key()
        worker = RemoteWorker(where, key)
        said = _ask(worker)
        file = keep(worker, plain_http=plain_http)
    except BadLogin as error:
        raise Failure(str(error), fix=error.fix, exit_code=USAGE) from None
    except OSError as error:
        raise Failure(f"{credentials_file()} cannot be written", why=str(error)) from None
    scope = f" of {', '.join(said['functions'])}" if said["functions"] else ""
    echo(f"{where}: the key {said['name']!r} may {', '.join(said['may'])}{scope}; kept in {file}")
    echo(f"  export {WORKER_VARIABLE}={where}")


@click.command()
@click.argument("url", required=False)
def logout(url: str | None) -> None:
    """Delete the stored key for a worker, or all keys.

    The key remains valid until sockd keys rm on the worker's host."""
    try:
        gone = forget(url)
    except BadLogin as error:
        raise Failure(str(error), fix=error.fix, exit_code=USAGE) from None
    except OSError as error:
        raise Failure(f"{credentials_file()} cannot be written", why=str(error)) from None
    if url is not None and not gone:
        raise Failure(f"there was no key for {url}", exit_code=NOT_FOUND)
    for each in gone:
        echo(f"deleted the key for {each}")


def _read_key() -> str:
    if sys.stdin.isatty():
        key: str = click.prompt("key", hide_input=True, err=True)
    else:
        key = sys.stdin.readline(_MAX_KEY_CHARS + 2)
    key = key.strip()
    if not key or len(key) > _MAX_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise Failure("that is no key", why="use the line that sockd keys add printed", exit_code=USAGE)
    return key


def _ask(worker: RemoteWorker) -> dict[str, list[str]]:
    """The worker's description of the key. Raises: Failure."""
    try:
        with closing(worker.connection(_DEADLINE_S)) as connection:
            connection.request("GET", f"{worker.prefix}/key", headers=worker.headers)
            response = connection.getresponse()
            body = response.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = f"{worker.url}: {error}"
        raise Failure("no worker answers", why=why, exit_code=UNREACHABLE) from None
    try:
        said = json.loads(body)
        if response.status == 200:
            return {"name": said["name"], "may": said["may"], "functions": said["functions"]}
        message = said["errorMessage"]
    except (ValueError, KeyError, TypeError):
        raise no_management(worker.url, response.status) from None
    if response.status == 404:  # the worker's public port
        raise no_management(worker.url, response.status)
    raise Failure(
        f"{worker.url} refuses the key", why=str(message), fix="sockd keys add NAME --may deploy (on its host)"
    )
