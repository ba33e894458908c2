"""`sockd backup`: a copy of what a worker keeps, made while it runs or not.

The copy is a state directory: put in the place of one, it is what the worker was. Databases are copied by SQLite's own backup,
each as of one moment; code and initscripts, whose names are their digests, before and after that, so that all that the copy of
the registry names is next to it. Packages are left out unless asked for: a worker installs again what its functions need. Images
likewise, with a warning that names them; what a worker with a store elsewhere has of them is small, and always copied. The copy
gets its name when it is complete (`backup_parts`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import click

from sockd.base.spelling import counted
from sockd.client.cli.worker.backup_parts import unfinished
from sockd.client.cli.worker.state_copy import copy_database, copy_file, copy_growing, copy_new_entries, size_mb
from sockd.client.cli.worker.state_images import (
    IMAGES,
    KEY,
    PARTS_OF_STORE,
    STORE,
    has_own_store,
    how_they_return,
    lacking,
)
from sockd.client.console.client import Management, refuse_elsewhere, state_dir_option
from sockd.client.console.output import USAGE, Failure, echo, progress, say

DATABASES = ("registry.sqlite", "events.sqlite")
JOINED = "registry.joined.sqlite"
"""What the registry of a worker is called that has joined a group."""
BY_DIGEST = {"code": "digest", "initscripts": "initscript"}
"""Directories with immutable entries, and the column of the registry that names them."""
DIRECTORIES = ("destinations", "logs", "recordings")
FILES = ("secret.key", "keys.json", "keys.made", "learned.json", "history.json")
PACKAGES = "store"
TRIES = 3


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--packages", is_flag=True, help="Include installed packages, for a host without a package index.")
@click.option("--images", is_flag=True, help="Include container images, also those that no registry has.")
@state_dir_option
def backup(directory: Path, packages: bool, images: bool, state_dir: Path) -> None:
    """Copy the worker's state directory to a new DIRECTORY, while the worker runs or not.

    `sockd restore DIRECTORY` makes it a worker's state again. The copy contains the keys that encrypt environments, secrets and
    images, unless [secrets] key_file and [images] key_file store them elsewhere."""
    refuse_elsewhere("sockd backup")
    if os.geteuid() != 0:
        raise Failure("only root can read a state directory", fix="sudo sockd backup ...", exit_code=USAGE)
    if (group := _group_of(state_dir)) is not None:
        raise Failure(
            f"the worker of {state_dir} is in a group{f', {group}' if group else ''}, and keeps nothing that a backup is made of",
            why="functions, keys and events of a group are in PostgreSQL, and files of deploys in the chunk store",
            fix="pg_dump --format=custom --file=sockd.dump DSN, then copy images.store, images.key_file and secrets.key_file",
        )
    if not (state_dir / DATABASES[0]).exists():
        raise Failure(
            f"{state_dir} is not the state directory of a worker",
            why=f"there is no {DATABASES[0]} in it",
            fix="name it with --state-dir; of a group, back up the database (pg_dump) and the chunk store",
        )
    if directory.exists():
        raise Failure(f"{directory} exists", fix="name a directory that does not exist yet")
    if directory.resolve().is_relative_to(state_dir.resolve()):
        raise Failure(f"{directory} is in the state directory", fix="name a directory outside of it", exit_code=USAGE)
    try:
        with progress(f"copying {state_dir}") as show, unfinished(directory) as part:
            for _ in range(TRIES):
                _copy(state_dir, part, packages=packages, images=images)
                if not (missing := entries_lacking(part)):
                    break
                show("a deploy changed the state meanwhile: copying again")
            else:
                raise Failure(
                    "deploys change the state faster than it can be copied", why=f"there is no copy of {missing[0]}"
                )
    except (OSError, sqlite3.Error, shutil.Error) as error:
        raise Failure(f"{state_dir} cannot be copied to {directory}", why=str(error)) from None
    _warn_of_images(directory)
    echo(
        f"{directory}: {size_mb(directory):.1f} MB; to restore: stop sockd, sudo sockd restore {directory}, start sockd"
    )


def _group_of(state_dir: Path) -> str | None:
    """Return the group of the worker, as it says itself, or empty if it does not run; None: it is in no group."""
    with suppress(Failure):
        if (state_dir / "sockd.sock").exists():
            status = Management(state_dir).get("status")
            return str(status["group"]["name"]) if "group" in status else None
    has_joined = (state_dir / JOINED).exists() and not (state_dir / DATABASES[0]).exists()
    return "" if has_joined else None


def _copy(state: Path, copy: Path, *, packages: bool, images: bool) -> None:
    for name in BY_DIGEST:
        copy_new_entries(state / name, copy / name)
    for name in DATABASES:
        copy_database(state / name, copy / name)
    for name in BY_DIGEST:
        copy_new_entries(state / name, copy / name)
    if packages:
        copy_new_entries(state / PACKAGES / "packages", copy / PACKAGES / "packages")
        (copy / PACKAGES).chmod(0o700)
    for name in DIRECTORIES:
        copy_new_entries(state / name, copy / name)
    for name in FILES:
        if (state / name).exists():
            copy_file(str(state / name), str(copy / name))
    if images or not has_own_store(state):
        _copy_images(state, copy)


def _copy_images(state: Path, copy: Path) -> None:
    """The records, then the store's objects, then its chunks: each names only what was there before it."""
    if (state / KEY).exists():
        copy_file(str(state / KEY), str(copy / KEY))
    copy_new_entries(state / IMAGES, copy / IMAGES)
    for part in PARTS_OF_STORE:
        copy_growing(state / STORE / part, copy / STORE / part)
    if (copy / STORE).is_dir():
        for directory in (STORE, STORE.parent):
            shutil.copystat(state / directory, copy / directory)  # the agent, another user, enters the store


def _warn_of_images(copy: Path) -> None:
    """Name the images that functions need and the copy does not have."""
    if images := lacking(copy):
        say(
            f"warning: {counted(len(images), 'image')} of functions not in the copy (--images includes them); after a restore"
        )
        for line in how_they_return(images):
            say(f"  {line}")


def entries_lacking(copy: Path) -> list[str]:
    """Return the entries that the registry of a copy names and the copy does not contain, with their functions.

    Raises: sqlite3.Error."""
    missing = []
    with closing(sqlite3.connect(copy / DATABASES[0])) as registry:
        for directory, column in BY_DIGEST.items():
            for digest, names in registry.execute(
                f"SELECT {column}, group_concat(DISTINCT name) FROM versions WHERE {column} != '' GROUP BY 1"
            ):
                if not any((copy / directory).glob(f"{digest}*")):
                    missing.append(f"{directory}/{digest[:12]} ({names.replace(',', ', ')})")
    return missing
