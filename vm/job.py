"""What a guest is given: the checkout, the command and its environment, as one archive that it finds on its third disk."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from vm.debian import VmError

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
GUEST = Path(__file__).with_name("guest")
PASSED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_DEFAULT_TIMEOUT")
PASSED_PREFIXES = ("SOCKD_",)
BUILD_FILES = ("pyproject.toml", "setup.cfg", "setup.py", "scripts/setup")
BUILT = ("sockd", "zygote")
BLOCK = 1 << 20
"""The archive's size is a multiple of this, as it is a disk."""


def environment() -> dict[str, str]:
    """The environment of a command in the guest: fixed, and what of the host's is about package indexes, proxies and sockd."""
    passed = {
        key: value
        for key, value in os.environ.items()
        if key in PASSED or key.startswith(PASSED_PREFIXES) or key.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
    fixed = {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM": "dumb",
        "SSL_CERT_FILE": str(CERTIFICATES),
        "PIP_CERT": str(CERTIFICATES),
    }
    return {**passed, **fixed}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A Git work tree of sockd, with what is not committed yet."""

    top: Path

    def files(self) -> list[Path]:
        """Its files, but for those that Git ignores, relative to it. Raises: VmError: it is no work tree."""
        command = ["git", "-C", str(self.top), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise VmError(f"{self.top} is no Git checkout: {done.stderr.decode().strip()}")
        names = {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}
        return sorted(name for name in names if os.path.lexists(self.top / name))

    def build_files(self) -> list[Path]:
        """Return the files that `make setup` depends on."""
        extensions = {name for name in self.files() if name.suffix in (".c", ".h") and name.parts[0] in BUILT}
        return [name for name in self.files() if str(name) in BUILD_FILES or name in extensions]

    def digest(self) -> str:
        """A digest of the files' names and contents."""
        digest = hashlib.sha256()
        for name in self.files():
            file = self.top / name
            content = os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()
            digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
        return digest.hexdigest()[:16]

    def copy_to(self, directory: Path) -> None:
        """Copy the files into a new directory."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            self.add_to(tar, "")
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(directory, filter="tar")

    def add_to(self, tar: tarfile.TarFile, prefix: str) -> None:
        """Add the files to an archive, as root's."""
        for name in self.files():
            tar.add(self.top / name, f"{prefix}{name}", recursive=False, filter=_owned_by_root)


def write_job(file: Path, checkout: Checkout, command: list[str]) -> None:
    """Write the archive.

    Args: command: its words; one word alone is a line of shell."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    variables = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment().items())
    with tarfile.open(file, "w") as tar:
        for name in ("init", "uml.c"):
            tar.add(GUEST / name, f"guest/{name}", filter=_owned_by_root)
        tar.add(CERTIFICATES, "guest/ca-certificates.crt", filter=_owned_by_root)
        _add_text(tar, "guest/command", f"{variables}{line}\n")
        checkout.add_to(tar, "checkout/")
    with file.open("r+b") as disk:
        disk.truncate(-(-file.stat().st_size // BLOCK) * BLOCK)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    tar.addfile(member, io.BytesIO(text.encode()))
