"""The package store: one immutable directory per distribution, and one small file that describes it.

    <store>/<key>/                 what sandboxes see as /packages/<key>
    <store>/.meta/<key>.json       `Package`; a distribution is there if and only if this file is

Publishing renames the directory first and the file last; removal is the reverse. So after a crash a directory without its
file is garbage, which `recover` removes. Owns the store and what it
moves to `tmp`. Every method but the look-ups and `forget` blocks. Knows nothing of uv.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sockd.isolation.roots.interpreter import cache_tag_of
from sockd.starts.packages.distribution import python_of
from sockd.starts.packages.package_tree import sync
from sockd.starts.packages.provided_names import Provided, provided_by

META = ".meta"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """What a published directory holds, looked at once, when it was installed."""

    key: str
    name: str
    version: str
    digest: str
    python: str
    """Cache tag of the interpreter that it was installed and compiled for, as in `__pycache__` file names."""
    modules: tuple[str, ...]
    """What can be imported at top level, namespace packages too."""
    pth_files: tuple[str, ...]
    """Names of .pth files, which `site` would run; who puts the directory on sys.path must do it instead."""
    has_bin: bool
    provided: Provided | None = None
    """What imports may find in it; None only in a file of an older worker, see `PackageStore.recover`."""
    size_bytes: int
    """Lengths of all files, with bytecode."""
    installed_at: float
    """Unix time, s."""


class PackageStore:
    """All distributions of this worker. One process at a time uses a store (the daemon's lock sees to it)."""

    def __init__(self, root: Path, tmp: Path) -> None:
        """
        Args:
            root: the store.
            tmp: a directory of its own on the same file system, for what is not published yet or not any more."""
        self.root = root
        self.tmp = tmp
        self._packages: dict[str, Package] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._packages

    def __iter__(self) -> Iterator[Package]:
        return iter([self._packages[key] for key in sorted(self._packages)])

    def __getitem__(self, key: str) -> Package:
        return self._packages[key]

    def recover(self) -> list[str]:
        """Makes the directories, reads what is published, deletes everything else. Call it once, before anything else.

        Returns: the keys that were deleted: half published, half withdrawn, or made for another Python."""
        for directory, mode in ((self.root, 0o755), (self.root / META, 0o700), (self.tmp, 0o700)):
            directory.mkdir(mode=mode, parents=True, exist_ok=True)
            directory.chmod(mode)
        self._packages = {package.key: package for package in map(self._read, self._keys_of_files()) if package}
        deleted = [name for name in os.listdir(self.root) if name != META and name not in self._packages]
        for name in deleted:
            self._move_away(self.root / name)
        for name in os.listdir(self.tmp):
            delete(self.tmp / name)
        return sorted(deleted)

    def publish(self, tree: Path, package: Package) -> None:
        """Makes a finished tree the package's directory, durably. Afterwards the tree is gone from where it was.

        Raises: OSError; nothing is published then."""
        destination = self.root / package.key
        if destination.exists():
            # Only a publish that was cut off between its two renames in this very process leaves one here.
            self._move_away(destination)
        record = self.tmp / f"{uuid.uuid4().hex}.json"
        record.write_bytes(msgspec.json.encode(package))
        sync(self.root)
        os.rename(tree, destination)
        os.rename(record, self._file(package.key))
        sync(self.root)
        self._packages[package.key] = package

    def forget(self, key: str) -> None:
        """From here on the package is not there for anyone who asks; `withdraw` must follow. Does not block."""
        del self._packages[key]

    def withdraw(self, key: str) -> None:
        """Deletes a forgotten package from the disk."""
        self._file(key).unlink(missing_ok=True)
        delete(self._move_away(self.root / key))

    def _keys_of_files(self) -> list[str]:
        return [name.removesuffix(".json") for name in os.listdir(self.root / META)]

    def _read(self, key: str) -> Package | None:
        """The package, if it is whole; if not, its file is deleted and the directory is rubbish."""
        try:
            package = msgspec.json.decode(self._file(key).read_bytes(), type=Package)
            if package.key == key and package.python == cache_tag_of(python_of(key)) and (self.root / key).is_dir():
                offers = package.provided or provided_by(self.root / key)  # an older worker did not note it
                return msgspec.structs.replace(package, provided=offers)
        except msgspec.DecodeError:
            pass  # Cut short by a power failure, or an older format: either way the package is installed anew.
        delete(self.root / META / f"{key}.json")
        return None

    def _file(self, key: str) -> Path:
        return self.root / META / f"{key}.json"

    def _move_away(self, path: Path) -> Path:
        away = self.tmp / uuid.uuid4().hex
        os.rename(path, away)
        return away


def delete(path: Path) -> None:
    """Deletes a file or a tree; one that is gone already is no error."""
    try:
        path.unlink()
    except IsADirectoryError:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
