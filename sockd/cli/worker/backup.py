"""`sockd backup`: a copy of what a worker keeps, made while it runs or not.

The copy is a state directory: put in the place of one, it is what the worker was. Databases are copied by SQLite's own backup,
each as of one moment; code and initscripts, whose names are their digests, before and after that, so that all that the copy of
the registry names is beside it. Packages are left out unless asked for: a worker installs again what its functions need.

Owns the copy until it is whole.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from sockd.console.client import refuse_elsewhere, state_dir_option
from sockd.console.output import USAGE, Failure, echo, progress

DATABASES = ("registry.sqlite", "events.sqlite")
BY_DIGEST = {"code": "digest", "initscripts": "initscript"}
"""Directories with immutable entries, and the column of the registry that names them."""
DIRECTORIES = ("destinations", "logs", "recordings")
FILES = ("secret.key", "keys.json", "learned.json")
PACKAGES = "store"
TRIES = 3


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--packages", is_flag=True, help="Include installed packages, for a host without a package index.")
@state_dir_option
def backup(directory: Path, packages: bool, state_dir: Path) -> None:
    """Copy the worker's state directory to a new DIRECTORY, while the worker runs or not.

    To restore: stop the worker, copy DIRECTORY to its state directory (cp -a), and start it. The copy contains the key that
    encrypts environments and secrets, unless [secrets] key_file stores it elsewhere."""
    refuse_elsewhere("sockd backup")
    if os.geteuid() != 0:
        raise Failure("only root can read a state directory", fix="sudo sockd backup ...", exit_code=USAGE)
    if not (state_dir / DATABASES[0]).exists():
        raise Failure(f"{state_dir} is not a worker's state directory", why=f"there is no {DATABASES[0]} in it")
    try:
        with progress(f"copying {state_dir}") as show, _new(directory):
            for _ in range(TRIES):
                _copy(state_dir, directory, packages=packages)
                if not (lacking := _lacking(directory)):
                    break
                show("a deploy changed the state meanwhile: copying again")
            else:
                raise Failure(
                    "deploys change the state faster than it can be copied", why=f"there is no copy of {lacking[0]}"
                )
    except (OSError, sqlite3.Error, shutil.Error) as error:
        raise Failure(f"{state_dir} cannot be copied to {directory}", why=str(error)) from None
    size_mb = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6
    echo(f"{directory}: {size_mb:.1f} MB; to restore: stop sockd, cp -a {directory} {state_dir}, start sockd")


@contextmanager
def _new(directory: Path) -> Iterator[None]:
    """Create a directory that is closed to other users; remove it if the body fails."""
    os.mkdir(directory, 0o700)
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _copy(state: Path, copy: Path, *, packages: bool) -> None:
    for name in BY_DIGEST:
        _copy_new_entries(state / name, copy / name)
    for name in DATABASES:
        _copy_database(state / name, copy / name)
    for name in BY_DIGEST:
        _copy_new_entries(state / name, copy / name)
    if packages:
        _copy_new_entries(state / PACKAGES / "packages", copy / PACKAGES / "packages")
        (copy / PACKAGES).chmod(0o700)
    for name in DIRECTORIES:
        _copy_new_entries(state / name, copy / name)
    for name in FILES:
        if (state / name).exists():
            _copy_file(str(state / name), str(copy / name))


def _copy_database(source: Path, target: Path) -> None:
    if not source.exists():
        return
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Not read-only: who reads a database with a write-ahead log takes part in its locks.
    with (
        closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True)) as theirs,
        closing(sqlite3.connect(target)) as ours,
    ):
        theirs.backup(ours)


def _copy_new_entries(source: Path, target: Path) -> None:
    """Copy each entry completely or not at all: the worker may remove it meanwhile."""
    if not source.is_dir():
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if (target / entry.name).exists():
            continue
        part = target / f".{entry.name}.part"
        try:
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, part, symlinks=True, copy_function=_copy_file)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(entry.path, str(part))
            else:
                continue
        except (FileNotFoundError, shutil.Error):
            if os.path.lexists(entry.path):
                raise
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
            continue
        os.rename(part, target / entry.name)


def _copy_file(source: str, target: str) -> str:
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        found = os.stat(source)
        os.chown(target, found.st_uid, found.st_gid)
        os.chmod(target, stat.S_IMODE(found.st_mode))
    return target


def _lacking(copy: Path) -> list[str]:
    """Entries that the copied registry names and the copy does not contain."""
    lacking = []
    with closing(sqlite3.connect(copy / DATABASES[0])) as registry:
        for directory, column in BY_DIGEST.items():
            for (digest,) in registry.execute(f"SELECT DISTINCT {column} FROM versions WHERE {column} != ''"):
                if not any((copy / directory).glob(f"{digest}*")):
                    lacking.append(f"{directory}/{digest}")
    return lacking
