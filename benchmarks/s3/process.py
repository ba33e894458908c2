"""A server in a process of its own, for as long as a `with` lasts."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.s3.client import Client
from sockd.base.sigv4.canonical import Credentials
from sockd.linux.readiness import is_readable

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
REGION = "us-east-1"
_ROOT = Path(__file__).resolve().parent.parent.parent


class ServerFailed(Exception):
    """The server did not start; its words are on stderr."""


class S3Process:
    """A server of its own directory and keys.

    Args:
        directory: where it keeps objects. None: a temporary one, which ends with it.
        access_key, secret_key: the secret is made up when None.
        log: a file for its request log, if wanted.
        port: 0: a free one, which a server that is started again has, too.

    The server ends with the context, and if this process dies before, with this process."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        access_key: str = "sockd",
        secret_key: str | None = None,
        log: Path | None = None,
        port: int = 0,
    ) -> None:
        self.access_key = access_key
        self.secret_key = secret_key or secrets.token_urlsafe(24)
        self.admin_token = secrets.token_urlsafe(24)
        self.url = ""
        self._directory = directory
        self._log = log
        self._port = port
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Raises ServerFailed."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.access_key, self.secret_key)

    @property
    def pid(self) -> int:
        assert self._process, "not started"
        return self._process.pid

    def client(self) -> Client:
        """A new client, the caller's to close."""
        return Client(self.url, self.credentials, admin_token=self.admin_token)

    def write_credentials(self, path: Path) -> None:
        """Write the keys as AWS's credentials file, which no other user may read. The file must not exist."""
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(
            f"[default]\naws_access_key_id = {self.access_key}\naws_secret_access_key = {self.secret_key}\n"
        )

    def env(self, url: str | None = None) -> dict[str, str]:
        """The variables with which a function finds this server.

        Args:
            url: of a proxy before it."""
        return {
            "AWS_ENDPOINT_URL_S3": url or self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def start(self) -> None:
        """Raises ServerFailed."""
        command = [sys.executable, "-m", "benchmarks.s3", "--access-key", self.access_key, "--die-on-eof"]
        if self._directory:
            command.append(str(self._directory))
        if self._port:
            command += ["--port", str(self._port)]
        if self._log:
            command += ["--log", str(self._log)]
        environment = {
            **os.environ,
            "SOCKD_S3_SECRET_KEY": self.secret_key,
            "SOCKD_S3_ADMIN_TOKEN": self.admin_token,
            # Found from any working directory, also where sockd is used from its checkout.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
        }
        # Its stdin is how it learns of our end; nobody else inherits the other end of that.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert self._process.stdout
            ready = is_readable(self._process.stdout, START_DEADLINE_S)
            self.url = self._process.stdout.readline().strip() if ready else ""
            if not self.url:
                raise ServerFailed("the S3 server did not start")
            self._port = int(self.url.rpartition(":")[2])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it. May be called again."""
        process, self._process = self._process, None
        if process:
            assert process.stdin and process.stdout
            process.stdin.close()
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
