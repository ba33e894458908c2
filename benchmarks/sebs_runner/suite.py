"""The published suite in a cache directory: installed by uv from PyPI, pinned by hash, without its dependencies.

Owns `<cache>/<package>-<version>`, made in a directory beside it and published by rename. A file of the suite is read
through `Suite`, which compares it with the RECORD of its wheel: what runs is what was published.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sebs_runner.errors import FetchFailed, SuiteChanged, SuiteMissing, WrongHash

FETCH_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel on PyPI."""

    name: str
    version: str
    sha256: tuple[str, ...]
    """The digests of the wheels that are right, one per platform."""

    @property
    def directory(self) -> str:
        return f"{self.name}-{self.version}"

    def requirement(self) -> str:
        """The line of a requirements file."""
        return f"{self.name}=={self.version} " + " ".join(f"--hash=sha256:{digest}" for digest in self.sha256)


SUITE = Pin("serverless-benchmarks", "1.2.0", ("85f422747d20857eed1d6320980476824dc5db1a8102213826a6e94b329d8173",))
"""The suite. `sebs` on PyPI is something else altogether."""
FFMPEG = Pin(
    "imageio-ffmpeg",
    "0.6.0",
    ("c7e46fcec401dd990405049d2e2f475e2b397779df2519b544b8aab515195282",),
)
"""A wheel around a static ffmpeg 7.0.2: 220 calls one, and SeBS's own way is to download it from a web page."""


def default_cache() -> Path:
    """$SOCKD_SEBS_CACHE, or sockd/sebs in the user's cache directory."""
    if chosen := os.environ.get("SOCKD_SEBS_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sockd" / "sebs"


def fetch(pin: Pin, cache: Path) -> Path:
    """The directory that a package is installed in; installs it if it is not there. Blocks.

    Raises: WrongHash when the index has another file under this version, FetchFailed for everything else."""
    final = cache / pin.directory
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
        requirements, target = Path(scratch) / "requirements.txt", Path(scratch) / "target"
        requirements.write_text(pin.requirement() + "\n")
        _install(pin, requirements, target)
        try:
            target.rename(final)
        except OSError:
            if not final.is_dir():  # else another run was quicker, with the same files
                raise
    return final


def _install(pin: Pin, requirements: Path, target: Path) -> None:
    options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-config", "--quiet", "--color", "never")
    command = [*_uv(), "pip", "install", "--python", sys.executable, *options]
    try:
        done = subprocess.run(
            [*command, "--target", str(target), "-r", str(requirements)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_DEADLINE_S,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "copy"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchFailed(f"{pin.directory} cannot be installed: {error}") from None
    if done.returncode == 0:
        return
    words = done.stdout.decode(errors="replace").strip()
    if "hash mismatch" in words.lower():
        raise WrongHash(
            f"{pin.directory}: the package index serves another file than the published one. {words}",
            fix="use PyPI itself, or ask whoever runs the index why the file differs",
        )
    raise FetchFailed(
        f"{pin.directory} cannot be installed: {words}", fix="is a package index within reach? (UV_DEFAULT_INDEX)"
    )


def _uv() -> list[str]:
    try:
        from uv import find_uv_bin

        return [find_uv_bin()]
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise FetchFailed("uv is not installed beside sockd", fix="pip install uv")
    return [found]


class Suite:
    """The suite's files, read-only."""

    def __init__(self, root: Path) -> None:
        """Args: root: where the wheel was installed (`fetch`). Raises: SuiteMissing, SuiteChanged."""
        self._root = root
        self.path = root / "sebs"
        self._digests = dict(_record(root))

    @classmethod
    def of(cls, cache: Path) -> Suite:
        """The suite in a cache. Raises: SuiteMissing."""
        if not (cache / SUITE.directory).is_dir():
            raise SuiteMissing(f"the suite is not in {cache}", fix="sockd sebs fetch")
        return cls(cache / SUITE.directory)

    def read(self, *parts: str) -> bytes:
        """A file below `sebs/`. Raises: SuiteMissing, SuiteChanged."""
        path = "/".join(parts)
        try:
            data = (self.path / path).read_bytes()
        except OSError:
            raise SuiteMissing(f"the suite has no file {path}", fix=self._fix()) from None
        if _digest(data) != self._digests.get(f"sebs/{path}"):
            raise SuiteChanged(f"{self.path / path} is not the published file", fix=self._fix())
        return data

    def files(self, *parts: str) -> list[str]:
        """The files below a directory, relative to it, sorted; bytecode left out."""
        top = self.path.joinpath(*parts)
        found = (file.relative_to(top) for file in top.rglob("*") if file.is_file())
        return sorted(str(file) for file in found if "__pycache__" not in file.parts)

    def _fix(self) -> str:
        return f"rm -r {self._root} && sockd sebs fetch"


def _record(root: Path) -> Iterator[tuple[str, str]]:
    """(path, digest as RECORD writes it) of everything that the wheel brought. Raises: SuiteMissing."""
    found = sorted(root.glob("serverless_benchmarks-*.dist-info/RECORD"))
    if not found or not (root / "sebs").is_dir():
        raise SuiteMissing(f"{root} is not the suite", fix=f"rm -r {root} && sockd sebs fetch")
    with found[0].open(newline="") as lines:
        for path, digest, _ in csv.reader(lines):
            yield path, digest


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def ffmpeg(cache: Path) -> Path:
    """A static ffmpeg, installed if need be. Raises: FetchFailed."""
    found = sorted((fetch(FFMPEG, cache) / "imageio_ffmpeg" / "binaries").glob(f"ffmpeg-linux-{platform.machine()}-*"))
    if not found:
        raise FetchFailed(f"{FFMPEG.directory} holds no ffmpeg for {platform.machine()}")
    return found[0]
