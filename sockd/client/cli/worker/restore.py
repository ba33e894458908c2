"""`sockd restore`: what `sockd backup` has copied becomes a worker's state directory again, while no worker runs on it.

The copy is made next to the state directory and renamed, so that there is the old state, or the new one. The old one is kept
under another name. Owns the lock of the state directory meanwhile, so that no worker starts on it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, count
from pathlib import Path

import click

from sockd.base.spelling import counted
from sockd.client.cli.worker.backup import DATABASES, FILES, PACKAGES, entries_lacking
from sockd.client.cli.worker.backup_parts import LIST, Parts, listed
from sockd.client.cli.worker.state_copy import copy_file, copy_new_entries, new_directory
from sockd.client.cli.worker.state_images import how_they_return, lacking
from sockd.client.console.client import refuse_elsewhere, state_dir_option
from sockd.client.console.output import USAGE, Failure, echo, progress, say, suggest

LOCK = "lock"


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Move state that is there to STATE_DIR.old-TIME.")
@state_dir_option
def restore(directory: Path, replace: bool, state_dir: Path) -> None:
    """Make DIRECTORY, which `sockd backup` has made, the state directory of a worker that does not run.

    DIRECTORY stays as it is. The worker installs packages that are not in it when it starts; images of functions that it does not
    have are named."""
    refuse_elsewhere("sockd restore")
    if os.geteuid() != 0:
        raise Failure("only root can write a state directory", fix="sudo sockd restore ...", exit_code=USAGE)
    state_dir = state_dir.resolve()
    if state_dir.is_relative_to(directory.resolve()):
        raise Failure(f"{state_dir} is in the backup itself", fix="name another --state-dir", exit_code=USAGE)
    parts = listed(directory)
    _check(directory)
    made = state_dir.with_name(f".{state_dir.name}.restoring")
    try:
        if made.exists():
            shutil.rmtree(made)  # of a restore that was killed
        with _not_running(state_dir), progress(f"copying {directory}"), new_directory(made):
            _copy(directory, made)
            kept = _put(made, state_dir, replace=replace)
    except (OSError, shutil.Error) as error:
        raise Failure(f"{directory} cannot be restored to {state_dir}", why=str(error)) from None
    _tell(directory, parts, state_dir, kept)


def _check(backup: Path) -> None:
    """Raises: Failure, if this is no backup, or is damaged."""
    for name in DATABASES:
        if not (backup / name).exists():
            if name == DATABASES[0]:
                raise Failure(f"{backup} is not a backup", why=f"there is no {name} in it")
            continue
        try:
            with closing(sqlite3.connect(f"file:{backup / name}?mode=ro&immutable=1", uri=True)) as database:
                (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            words = str(error)
        if words != "ok":
            raise Failure(f"{backup / name} is damaged", why=words, fix="restore an earlier backup")


@contextmanager
def _not_running(state: Path) -> Iterator[None]:
    """While this lasts, no worker starts on a state directory. Raises: Failure, if one runs; OSError."""
    if not state.is_dir():
        yield
        return
    lock_fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock_fd, 32).decode(errors="replace").strip()
            raise Failure(
                f"a worker runs on {state}", why=f"its pid is {pid}", fix="sudo systemctl stop sockd", exit_code=USAGE
            ) from None
        yield
    finally:
        os.close(lock_fd)


def _copy(backup: Path, made: Path) -> None:
    """All entries, whichever version of `sockd backup` has made them."""
    for entry in sorted(backup.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            copy_new_entries(entry, made / entry.name)
            (made / entry.name).chmod(0o700)
        elif entry.is_file() and entry.name != LIST:
            copy_file(str(entry), str(made / entry.name))


def _put(made: Path, state: Path, *, replace: bool) -> Path | None:
    """Rename the copy to the state directory; where the old one is. Raises: Failure, OSError."""
    old = None
    if state.is_dir() and any(each.name != LOCK for each in state.iterdir()):
        if not replace:
            raise Failure(
                f"{state} has the state of a worker",
                fix="add --replace, which keeps it under another name",
                exit_code=USAGE,
            )
        old = _free_name(state)
        os.rename(state, old)
    elif state.is_dir():
        (state / LOCK).unlink(missing_ok=True)
        state.rmdir()
    try:
        os.rename(made, state)
    except OSError:
        if old is not None:
            os.rename(old, state)
        raise
    state.chmod(0o711)
    return old


def _free_name(state: Path) -> Path:
    """A name for state that is moved away, with the time; with a number, too, if there were more restores in this second."""
    name = f"{state.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for each in names if not (path := state.with_name(each)).exists())


def _tell(backup: Path, parts: Parts | None, state: Path, old: Path | None) -> None:
    """Name what is not in the backup, and what comes next."""
    with closing(sqlite3.connect(f"file:{state / DATABASES[0]}?mode=rw", uri=True)) as registry:
        names = registry.execute("SELECT count(DISTINCT name) FROM versions").fetchone()[0]
        has_sealed = registry.execute('SELECT count(*) FROM versions WHERE config LIKE \'%"sealed":"v1.%\'').fetchone()[
            0
        ]
    echo(f"{state}: {counted(names, 'function')} restored from {backup}")
    if old is not None:
        say(f"the state that was there is in {old}")
    if parts is None:
        say("the backup has no list of its parts, as of an older sockd: whether it lacks one is not known")
    elif lost := parts.lost(backup):
        say(
            f"warning: {backup} has lost {', '.join(lost)} since it was made; restore a whole copy of it with --replace"
        )
    if missing := entries_lacking(state):
        say(f"warning: what versions of functions need is not in the backup: {', '.join(missing)}; deploy them again")
    if not (state / PACKAGES).is_dir():
        say("packages are not in the backup: the worker installs them when it starts")
    for line in how_they_return(lacking(state)):
        say(f"images that are not in the backup, {line}")
    if has_sealed and not (state / FILES[0]).exists() and FILES[0] not in (parts.parts if parts else ()):
        say(f"environments are sealed, and {FILES[0]} is not in the backup: put the key where [secrets] key_file says")
    suggest("start the worker", "sudo systemctl start sockd")
