"""Destinations: where the record of an event goes that is over; another function, or a directory.

    directory:NAME    ID.json for each event, in a directory that the configuration names so, or in the worker's own
    NAME[:QUALIFIER]  a function, or its ARN: the record is its event

Owns the files that it writes until they have their names (by rename, so that a reader sees whole ones only). The names of
directories are the operator's: who may deploy over the network cannot make the worker write to a path of theirs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sockd.base.errors import BadConfig, BadRequest
from sockd.base.function_arns import PREFIX, parse

DIRECTORY = "directory:"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionDestination(NamedTuple):
    """A function to be invoked with the record."""

    name: str
    qualifier: str


class DirectoryDestination(NamedTuple):
    """A directory for the record's file."""

    name: str


Destination = FunctionDestination | DirectoryDestination


def parse_destination(text: str) -> Destination:
    """What a configuration says. Raises: BadRequest."""
    if text.startswith(DIRECTORY):
        name = text.removeprefix(DIRECTORY)
        if _NAME.fullmatch(name):
            return DirectoryDestination(name)
        raise BadRequest("the name of a directory is 1 to 64 of A-Z a-z 0-9 _ -; its path is in [events.directories]")
    found = parse(text)
    if found is None:
        raise BadRequest(
            f"{text[:200]!r} is no destination of sockd's: name a function, by name or ARN, or say directory:NAME"
        )
    if not found.is_local:
        raise BadRequest(
            f"the destination {text[:200]!r} is in another region or account: ARNs of this worker's functions begin with {PREFIX}"
        )
    return FunctionDestination(found.name, found.qualifier)


class Directories:
    """The directories that destinations may name."""

    def __init__(self, own: Path, named: Mapping[str, str]) -> None:
        """Args: own: where the worker makes those that the configuration does not name.

        Raises: BadConfig."""
        self._own = own
        self._named = {name: Path(path) for name, path in named.items()}
        for name, path in self._named.items():
            if not _NAME.fullmatch(name) or not path.is_absolute():
                raise BadConfig(f"events.directories.{name[:40]}: a name of A-Z a-z 0-9 _ -, and an absolute path")

    def check(self, directory: str) -> None:
        """Whether the directory that the configuration names so is there; the worker makes its own as they are needed.
        Blocks. Raises: BadRequest."""
        path = self._named.get(directory)
        if path is not None and not path.is_dir():
            raise BadRequest(f"directory:{directory}: events.directories names what is no directory of this host")

    def write(self, directory: str, name: str, content: bytes) -> None:
        """Put a file there, whole or not at all, in place of one of the same name; it belongs to the directory's owner.
        Blocks. Raises: OSError."""
        path = self._named.get(directory)
        if path is None:
            path = self._own / directory
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)  # parents of a path are made with the umask's mode
            path.mkdir(mode=0o700, exist_ok=True)
        directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _publish(directory_fd, name, content)
        finally:
            os.close(directory_fd)


def _publish(directory_fd: int, name: str, content: bytes) -> None:
    # The directory may be another user's, who could put a link in our way: O_EXCL follows none.
    temporary = f".{name}.tmp"
    _remove(directory_fd, temporary)  # of a daemon that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file_fd = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
    try:
        with open(file_fd, "wb") as file:
            file.write(content)
            owner = os.fstat(directory_fd)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(owner.st_mode) & 0o644)
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        _remove(directory_fd, temporary)
        raise


def _remove(directory_fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return
