"""The code store: every version of every function's code, each an immutable directory named by its digest.

    code/<digest>/      published: complete, byte-compiled, never changed again
    tmp/code-<uuid>/    being built or being removed

Owns both kinds of directory. A version is built in tmp and published by rename, so a reader sees all of it or nothing, and of two
builders of the same version either may win. Knows nothing of functions: the versions that are still needed are passed to `gc`.
Every method that touches the disk blocks: the daemon calls them through `asyncio.to_thread`, and any two of them may run at once,
except `gc` during a `publish` whose digest is not recorded yet.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive, StorageFull
from sockd.base.syncing import sync_directory, sync_tree
from sockd.functions.code import byte_compiler
from sockd.functions.code.archive import Tree, extract
from sockd.isolation.roots.interpreter import OWN_PYTHON, Interpreter
from sockd.linux.processes.bounded_child import run_bounded

SANDBOX_PATH = "/var/task"
"""Where a sandbox sees its code (AWS: LAMBDA_TASK_ROOT)."""
DIGEST = re.compile(r"[0-9a-f]{64}")
BUILDING = "code-"

SETTINGS_BYTES = 16 * 1024
"""Longest sockd.toml and ol.yaml."""

COMPILER = byte_compiler.__file__
COMPILE_DEADLINE_S = 120.0
COMPILE_MEMORY_BYTES = 1 << 30

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """One published version. `path` stays valid until `remove` or `gc`."""

    digest: str
    path: Path
    size_bytes: int
    """The bytes of the extracted files, bytecode not counted."""
    files: int

    def settings(self) -> str | None:
        """The text of sockd.toml, None without one. Raises BadArchive."""
        return read_text(self.path, "sockd.toml", SETTINGS_BYTES)

    def ol_yaml(self) -> str | None:
        """The text of OpenLambda's ol.yaml, None without one. Raises BadArchive."""
        return read_text(self.path, "ol.yaml", SETTINGS_BYTES)


class CodeStore:
    """The published versions below `root`."""

    def __init__(self, root: Path, tmp: Path, config: CodeConfig) -> None:
        """Stores its arguments; both directories must exist and be on one file system, writable by the worker alone."""
        self._root = root
        self._tmp = tmp
        self._config = config

    def recover(self) -> None:
        """Removes what a killed daemon left half built or half removed. Called once, before anything else."""
        for leftover in self._tmp.glob(f"{BUILDING}*"):
            shutil.rmtree(leftover)

    def digests(self) -> set[str]:
        """Every published version."""
        return {name for name in os.listdir(self._root) if DIGEST.fullmatch(name)}

    def path(self, digest: str) -> Path:
        """Where a version is, published or not. Raises ValueError unless it is a digest."""
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"not a digest: {digest!r}")
        return self._root / digest

    def publish(self, zip_path: Path) -> CodeVersion:
        """Extracts, byte-compiles and publishes a zip file; a version that is there already is only found again.

        On return the version is on the disk, not just in its cache: a row naming it may be written. After an error
        nothing is left behind.

        Raises: BadArchive; StorageFull."""
        return self._extracted(zip_path, self._publish)

    def _extracted(self, zip_path: Path, use: Callable[[Tree, Path], T]) -> T:
        """What `use` makes of the extracted tree, of which then nothing else is left. Raises: BadArchive; StorageFull."""
        building = self._new_tmp()
        try:
            building.mkdir(mode=0o700)
            return use(extract(zip_path, building, self._config), building)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull from error
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def check(self, zip_path: Path) -> None:
        """Extracts a zip file and throws it away. Raises: as `publish`."""
        self._extracted(zip_path, lambda tree, building: None)

    def _publish(self, tree: Tree, building: Path) -> CodeVersion:
        final = self.path(tree.digest())
        if not final.exists():
            if any(file.path.endswith(".py") for file in tree.files):
                compile_bytecode(building)
            building.chmod(0o755)
            sync_tree(building)
            # EEXIST or ENOTEMPTY: another publisher of the same version was faster, and its tree is as good as ours.
            try:
                building.rename(final)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            sync_directory(self._root)
        return CodeVersion(final.name, final, tree.size_bytes, len(tree.files))

    def compile_for(self, digest: str, python: Interpreter) -> None:
        """Adds an interpreter's bytecode to a published version, next to that of others (PEP 3147). Blocks.

        Each file is written whole, or not at all: sandboxes may have the version mounted."""
        if python != OWN_PYTHON:
            path = self.path(digest)
            compile_bytecode(path, python)
            sync_tree(path)

    def remove(self, digest: str) -> None:
        """Removes a version; one that is not there is fine. A sandbox that still has it mounted loses its files."""
        shutil.rmtree(self.withdraw(digest), ignore_errors=True)

    def withdraw(self, digest: str) -> Path:
        """Makes a version one that is not there, at once. Returns: the directory to be deleted, if there was one."""
        leaving = self._new_tmp()
        with suppress(FileNotFoundError):
            self.path(digest).rename(leaving)
        return leaving

    def gc(self, keep: Set[str]) -> set[str]:
        """Removes every version that is not in `keep` and returns which."""
        unneeded = self.digests() - keep
        for digest in unneeded:
            self.remove(digest)
        return unneeded

    def _new_tmp(self) -> Path:
        return self._tmp / f"{BUILDING}{uuid.uuid4().hex}"


def read_text(directory: Path, name: str, max_bytes: int) -> str | None:
    """The text of a regular file in a code tree, None when it is not there.

    Raises: BadArchive when it is something else, longer than max_bytes, or not UTF-8."""
    if not os.path.lexists(directory / name):
        return None
    data = read_bytes(directory, name, max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadArchive(f"{name} is not UTF-8: byte {error.start}") from None


def read_bytes(directory: Path, name: str, max_bytes: int) -> bytes:
    """The content of a regular file in a code tree. Raises: BadArchive when it is not there, something else, or longer."""
    try:
        with open(directory / name, "rb", opener=_open_warily) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadArchive(f"{name} is not a file")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise BadArchive(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    if len(data) > max_bytes:
        raise BadArchive(f"{name} is longer than {max_bytes} bytes")
    return data


def _open_warily(path: str, flags: int) -> int:
    # A tree of ours holds neither links nor pipes; should one ever, it is not followed, and its writer not waited for.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def compile_bytecode(
    directory: Path, python: Interpreter = OWN_PYTHON, *, memory_bytes: int = COMPILE_MEMORY_BYTES
) -> None:
    """Writes the bytecode of every module of a tree next to it, with the paths that a sandbox sees. Blocks.

    A read-only mount without bytecode makes every cold start compile again. What does not compile stays source: the
    handler gets its SyntaxError at init, where AWS gives it too. Compiling runs no code of the function's, but its text
    may be made to exhaust the compiler; so it happens in a process that is bounded in memory and time, and what was not
    compiled by then stays source as well."""
    run_bounded(
        [python.executable, "-I", "-S", COMPILER, str(directory), SANDBOX_PATH],
        memory_bytes=memory_bytes,
        deadline_s=COMPILE_DEADLINE_S,
        umask=0o022,  # the sandbox, another user, must be able to read the bytecode
    )
