"""Packages of Debian's releases, fetched by apt with lists of its own: the host's apt never sees them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vm.architecture import Architecture

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BASE_RELEASE = "bookworm"
"""The oldest Debian that sockd supports: the root file system is made of it."""
SUITES = (
    ("debian", "bookworm"),
    ("debian-security", "bookworm-security"),
    ("debian", "trixie"),
    ("debian-security", "trixie-security"),
    ("debian", "trixie-backports"),
    ("debian", "sid"),
)
CONTAINED = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--pid",
    "--mount",
    "--mount-proc",
    "--fork",
    "--kill-child=KILL",
)
"""Before a command: everything that it starts ends with it, and it ends with this process. (Both tools are util-linux.)"""
SYSTEM_PATH = "/usr/sbin:/sbin"
"""Where some distributions keep tools that PATH does not name."""
_SOURCE = re.compile(r"(https?://\S+?)/debian/?(?:\s|$)")


class VmError(Exception):
    """Something that a person has to mend; its text says what to do."""


def mirror(apt: Path = Path("/etc/apt")) -> str:
    """The address below which this host's apt finds Debian. Raises: VmError: it has none."""
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))):
        for line in file.read_text().splitlines() if file.is_file() else ():
            found = _SOURCE.search(line) if not line.lstrip().startswith("#") else None
            if found:
                return found[1]
    raise VmError("this host's apt has no Debian mirror: give one with --mirror URL (the part before /debian)")


def require(tools: dict[str, str]) -> None:
    """Check that programs are installed.

    Args: tools: the Debian package of each program.
    Raises: VmError: some are not."""
    path = os.pathsep.join((os.environ.get("PATH", ""), SYSTEM_PATH))
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool, path=path)})
    if missing:
        raise VmError(
            f"missing: {', '.join(missing)}; run: apt-get install --no-install-recommends {' '.join(missing)}"
        )


@dataclass(frozen=True, slots=True)
class Debian:
    """Debian's packages, as of the last `update`, in a directory of the cache."""

    directory: Path
    url: str
    """The mirror."""
    architecture: Architecture

    @classmethod
    def kept(cls, cache: Path, url: str, architecture: Architecture) -> Debian:
        """Return those of an architecture, with their place in the cache."""
        return cls(cache / f"apt-{architecture.debian}", url, architecture)

    def sources(self, *releases: str) -> list[str]:
        """The lines of a sources.list that name these releases; without any, all."""
        return [
            f"deb [signed-by={KEYRING}] {self.url}/{archive} {suite} main"
            for archive, suite in SUITES
            if not releases or suite.split("-")[0] in releases
        ]

    def update(self) -> None:
        """Fetch the lists of packages. Raises: VmError."""
        require({"apt-get": "apt"})
        print("vm: fetching Debian's lists of packages", flush=True)
        (self.directory / "lists/partial").mkdir(parents=True, exist_ok=True)
        sources = self.directory / "sources.list"
        sources.write_text("".join(f"{line}\n" for line in self.sources()))
        try:
            self._apt("apt-get", "update", "-qq")
        except BaseException:
            sources.unlink()  # or the next run would take these lists for whole ones
            raise

    def newest(self, pattern: str) -> dict[str, str]:
        """The newest package of each kernel series among those whose names match.

        Args: pattern: has the release of the kernel as its first group, such as 6.1.0-56-amd64.
        Returns: names of packages by series, such as 6.1."""
        if not (self.directory / "sources.list").exists():
            self.update()
        found: dict[str, str] = {}
        for name in self._apt("apt-cache", "pkgnames", "linux-").split():
            match = re.fullmatch(pattern, name)
            if match and numbers(name) > numbers(found.get(series_of(match[1]), "")):
                found[series_of(match[1])] = name
        return found

    def versions(self, package: str) -> dict[str, str]:
        """The versions of one package, each with the release that has it."""
        if not (self.directory / "sources.list").exists():
            self.update()
        lines = [line.split("|") for line in self._apt("apt-cache", "madison", package).splitlines()]
        return {version.strip(): where.split()[1].split("/")[0] for _, version, where in lines}

    def unpack(self, packages: list[str], tree: Path) -> None:
        """Fetch packages, each with `=VERSION`, `/RELEASE` or neither, and unpack them below a directory. Raises: VmError."""
        archives = self.directory / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir(parents=True)
        try:
            self._apt("apt-get", "download", "-qq", *packages, cwd=archives)
            for file in archives.glob("*.deb"):
                run("dpkg-deb", "-x", file, tree)
        finally:
            shutil.rmtree(archives)

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        own = {
            "Dir::Etc::sourcelist": self.directory / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.directory / "lists",
            "Dir::Cache": self.directory,
            "Dir::Cache::pkgcache": "packages.bin",  # which images of containers have switched off
            "Dir::Cache::srcpkgcache": "sources.bin",
            "APT::Sandbox::User": "root",
            "APT::Architecture": self.architecture.debian,
            "APT::Architectures": self.architecture.debian,
        }
        return run(
            tool, *(word for key, value in own.items() for word in ("-o", f"{key}={value}")), *arguments, cwd=cwd
        )


def numbers(name: str) -> tuple[int, ...]:
    """The numbers in a package's name, to compare versions by."""
    return tuple(int(number) for number in re.findall(r"\d+", name))


def series_of(release: str) -> str:
    """6.1 of 6.1.0-56-amd64."""
    return ".".join(release.split(".")[:2])


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a program that prepares something; its output. Raises: VmError, with the last lines of what it printed."""
    done = subprocess.run(
        (*CONTAINED, *command), cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise VmError(f"{' '.join(str(word) for word in command)} ended with status {done.returncode}:\n{last}")
    return done.stdout
