"""uv and interpreters as processes of the install cache: confined and bounded.

Owns uv's cache directory. Each command runs in its own session with a fixed environment, and is killed when its caller is
cancelled or the daemon dies. As root it keeps one capability, CAP_DAC_OVERRIDE: state directory and interpreter may lie in a home
directory that only its owner may enter. uvloop closes no descriptor in a child: the program that starts the daemon sets
close-on-exec for descriptors that Python did not open. Knows nothing of requirements or of the store."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from sockd.base.blocking import in_thread
from sockd.base.errors import PackagesFailed
from sockd.linux.processes import oom_score
from sockd.starts.packages.indexes import secrets_of, without_credentials

_QUIET = ("--quiet", "--color=never", "--no-progress")

MAX_WORDS_BYTES = 16 * 1024
"""How much of a command's stderr is kept; uv says what is wrong first."""

# What the operator may set for uv: where the index is, how to reach it, whom to trust. Everything else (UV_TARGET,
# UV_PYTHON, UV_LINK_MODE, PYTHONPATH, LD_PRELOAD ...) would change what an install means.
_PASSED = frozenset(
    (
        *("PATH", "HOME", "LANG", "LC_ALL", "NETRC", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
        *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX_STRATEGY", "UV_FIND_LINKS"),
        *("UV_NO_INDEX", "UV_OFFLINE", "UV_KEYRING_PROVIDER", "UV_EXCLUDE_NEWER", "UV_CONCURRENT_DOWNLOADS"),
        *("UV_HTTP_TIMEOUT", "UV_HTTP_CONNECT_TIMEOUT", "UV_HTTP_RETRIES", "UV_REQUEST_TIMEOUT"),
    )
)
_PUBLIC = _PASSED - {
    *("PATH", "HOME", "LANG", "LC_ALL", "NETRC", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT"),
    *("UV_FIND_LINKS", "UV_KEYRING_PROVIDER"),
}
"""The variables among those that a build's sandbox gets: nothing that names a file of the host or says who the worker is."""
_CERTIFICATE_PATHS = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_CERTIFICATES_IN_BASE = ("/etc/ssl/certs", "/usr/")
"""What of certificates a sandbox has, too (`images.base`)."""
_PASSED_PREFIX = "UV_INDEX_"  # UV_INDEX_<NAME>_USERNAME and _PASSWORD
# Many hosts are set up for pip only.
_PIP_NAMES = {
    "PIP_INDEX_URL": "UV_INDEX_URL",
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_CERT": "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE": "SSL_CERT_FILE",
}


_CERTIFICATES = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
"""Settings of newer and older versions of uv: trust whom the host trusts, so that the CA of a private index is installed
once, for all."""
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end."""

    returncode: int
    words: str
    """Its stderr, without this host's paths."""

    @property
    def killed_by_file_limit(self) -> bool:
        """True when it tried to write a file over the limit that it was started with."""
        return self.returncode == -signal.SIGXFSZ


class Uv:
    """Runs uv, and Python for what uv does not do."""

    def __init__(
        self,
        cache: Path,
        *,
        index_url: str | None,
        environ: Mapping[str, str] = os.environ,
        secrets: Collection[str] = (),
    ) -> None:
        """
        Args:
            cache: uv's cache; on the store's file system, so that an install is hard links and not copies.
            index_url: the package index; None is what the environment says, or else PyPI.
            environ: the daemon's environment, of which uv gets a part.
            secrets: what its words must not show."""
        self.cache = cache
        self._environment = environment(environ, cache=cache, index_url=index_url)
        self._secrets = sorted({*secrets, *_secrets(self._environment)}, key=len, reverse=True)
        self._running = 0
        self._gate = asyncio.Lock()

    async def run(
        self, *arguments: str, cwd: Path, max_file_bytes: int, variables: Mapping[str, str] | None = None
    ) -> Completed:
        """Runs `uv <arguments>` in `cwd`; the only indexes it knows are the operator's.

        Args:
            variables: of its environment, which win over those of the worker (`indexes`).
            max_file_bytes: a longer file kills it.
        Raises: PackagesFailed when uv is not installed. A cancellation kills it and all it started, then waits."""
        killed = True
        async with self._gate:
            self._running += 1
        try:
            command = [await in_thread(uv_path), *arguments, *_QUIET]
            completed = await self._run(command, cwd, max_file_bytes, self._with(variables or {}))
            killed = completed.returncode < 0
        finally:
            self._running -= 1
            if killed:
                await self._sweep_if_idle()
        return completed

    async def run_python(self, executable: str, *arguments: str, cwd: Path, max_file_bytes: int) -> Completed:
        """Runs an interpreter, with its standard library and nothing else, like `run`."""
        return await self._run([executable, "-I", "-S", *arguments], cwd, max_file_bytes, self._environment)

    def public_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of uv that a sandbox gets: the indexes and how to reach them, without credentials.

        Args: variables: as of `run`."""
        return {
            name: " ".join(map(without_credentials, value.split()))
            for name, value in self._with(variables).items()
            if name.upper() in _PUBLIC or (name in _CERTIFICATE_PATHS and value.startswith(_CERTIFICATES_IN_BASE))
        }

    def sweep(self) -> None:
        """Deletes what a killed uv was unpacking. Blocking; only while no uv runs on this cache."""
        for leftover in self.cache.glob(".tmp*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)

    async def _sweep_if_idle(self) -> None:
        """No uv can start while the gate is held, so what is deleted belongs to none; the last to end finds it all."""
        async with self._gate:
            if not self._running:
                await in_thread(self.sweep)

    def _with(self, variables: Mapping[str, str]) -> dict[str, str]:
        chosen = {**self._environment, **variables}
        if "UV_DEFAULT_INDEX" in variables:
            chosen.pop("UV_INDEX_URL", None)
        indexes = [each["UV_INDEX"] for each in (variables, self._environment) if each.get("UV_INDEX")]
        return chosen | ({"UV_INDEX": " ".join(indexes)} if indexes else {})

    async def _run(
        self, command: Sequence[str], cwd: Path, max_file_bytes: int, variables: Mapping[str, str]
    ) -> Completed:
        process = await self._start([*await in_thread(confinement, max_file_bytes), *command], cwd, variables)
        assert process.stderr is not None  # _start asked for a pipe
        try:
            words = await _head(process.stderr, MAX_WORDS_BYTES)
            returncode = await process.wait()
        finally:
            await _end(process)
        return Completed(returncode, self._public(words.decode(errors="replace"), cwd))

    async def _start(
        self, command: Sequence[str], cwd: Path, variables: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )
        try:
            started = await asyncio.shield(starting)
            oom_score.expose(started.pid)
            return started
        except asyncio.CancelledError:
            # The fork may have happened: only the finished start has the pid to kill.
            await _end(await starting)
            raise

    def _public(self, words: str, cwd: Path) -> str:
        """The message without its first "error: ", paths of the host and credentials: it is part of an error for the deployer."""
        for secret in self._secrets:
            words = words.replace(secret, "****")
        for path in (str(cwd), str(self.cache), str(self.cache.parent)):
            words = words.replace(path + "/", "").replace(path, ".")
        return words.strip().removeprefix("error: ")


def environment(environ: Mapping[str, str], *, cache: Path, index_url: str | None) -> dict[str, str]:
    """uv's environment, from the daemon's: index, proxies and certificates pass, also those that are meant for pip."""
    chosen = {
        name: value for name, value in environ.items() if name.upper() in _PASSED or name.startswith(_PASSED_PREFIX)
    }
    for pip_name, name in _PIP_NAMES.items():
        if pip_name in environ:
            chosen.setdefault(name, environ[pip_name])
    if index_url:
        # In the environment, not among the arguments: the URL may hold a password, and /proc shows arguments to all.
        chosen["UV_DEFAULT_INDEX"] = index_url
        chosen.pop("UV_INDEX_URL", None)
    if not any(name in chosen for name in _CERTIFICATES) and _has_certificates():
        chosen |= dict.fromkeys(_CERTIFICATES, "1")
    return chosen | {"UV_CACHE_DIR": str(cache), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """Credentials in variables for indexes and proxies."""
    for name, value in environment.items():
        if name.startswith(_PASSED_PREFIX) and name.endswith("_PASSWORD"):
            yield value
        for word in value.split():
            if "://" in word:
                yield from secrets_of(word[word.index("://") :])


def _has_certificates() -> bool:
    """Whether the host has a store of certificates; without one uv uses those that it brings."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile is not None or paths.capath is not None or any(map(os.path.exists, _BUNDLES))


def confinement(max_file_bytes: int) -> list[str]:
    """The words before a command that take from it what it does not need (util-linux; without it, nothing is taken)."""
    setpriv, prlimit = shutil.which("setpriv"), shutil.which("prlimit")
    words: list[str] = []
    if setpriv:
        # The death signal is for the daemon's SIGKILL: a uv that lived on would write into the next daemon's tmp.
        words += [setpriv, "--no-new-privs", "--pdeathsig=KILL"]
        if os.geteuid() == 0:
            words += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all,+dac_override"]
        words += ["--"]
    if prlimit:
        words += [prlimit, f"--fsize={max_file_bytes}", "--core=0", "--"]
    return words


_finding = threading.Lock()
"""Held while uv is looked for: the search asks sysconfig, whose first answers are wrong in one thread while another waits
for them."""


def uv_path() -> str:
    """The program. Blocks. Raises: PackagesFailed when it is not installed."""
    try:
        with _finding:
            return find_uv_bin()
    except FileNotFoundError:
        raise PackagesFailed("uv is not installed with sockd; install the package `uv`") from None


async def _head(stream: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """The stream's first bytes; it is read to its end, so that the writer never blocks."""
    head = bytearray()
    while chunk := await stream.read(65536):
        head += chunk[: limit_bytes - len(head)]
    return bytes(head)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the process and its children unless it has ended, and reaps it, even when cancelled meanwhile."""
    if process.returncode is not None:
        return
    # Not reaped yet, so the pid is still its own; it leads a session, hence a process group, of the same number.
    os.killpg(process.pid, signal.SIGKILL)
    reaping = asyncio.ensure_future(process.wait())
    cancelled: asyncio.CancelledError | None = None
    while not reaping.done():
        try:
            await asyncio.wait([reaping])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
