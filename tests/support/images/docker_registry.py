"""A real registry on loopback, Debian's docker-registry, and a push to it; skipped where it is not installed (`needs`)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "docker-registry"
USER, PASSWORD = "user", "secret pass:word"
_HTPASSWD = "user:$2y$05$oZNxcmkpZKt678kMgPldYO2MBC55V4SGYv4db3ZA77PkpYUvCh.FG"
"""As `htpasswd -nbB` makes it."""
_LISTENS = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Registry:
    """A running one."""

    address: str
    """HOST:PORT."""
    path: Path
    """What it stores."""
    has_auth: bool

    def push(self, name: str, blobs: dict[str, bytes], manifest: bytes, media_type: str) -> None:
        """Store an image as NAME:TAG."""
        repository, _, tag = name.partition(":")
        for digest, data in blobs.items():
            if data != manifest:
                location = self._send("POST", f"/v2/{repository}/blobs/uploads/", b"", {}, 202)
                mark = "&" if "?" in location else "?"
                self._send("PUT", f"{location}{mark}digest={urllib.parse.quote(digest)}", data, {}, 201)
        self._send("PUT", f"/v2/{repository}/manifests/{tag}", manifest, {"Content-Type": media_type}, 201)

    def _send(self, method: str, url: str, body: bytes, headers: dict[str, str], status: int) -> str:
        token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        connection = http.client.HTTPConnection(self.address, timeout=30)
        with contextlib.closing(connection):
            own = {"Authorization": f"Basic {token}"} if self.has_auth else {}
            parts = urllib.parse.urlsplit(url)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, body, {**headers, **own})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == status, answer
            return response.getheader("Location") or ""


@contextlib.contextmanager
def docker_registry(*, has_auth: bool = False) -> Iterator[Registry]:
    """A registry that ends with the block."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        (path / "htpasswd").write_text(_HTPASSWD + "\n")
        auth = {"auth": {"htpasswd": {"realm": "tests", "path": str(path / "htpasswd")}}} if has_auth else {}
        configuration = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(path / "store")}},
            "http": {"addr": "127.0.0.1:0"},
            **auth,
        }
        (path / "config.yml").write_text(json.dumps(configuration))  # which is YAML, too
        process = subprocess.Popen(
            [PROGRAM, "serve", str(path / "config.yml")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            assert process.stderr
            found = next((found for line in process.stderr if (found := _LISTENS.search(line))), None)
            assert found, "the registry did not start"
            yield Registry(found[1], path / "store", has_auth)
        finally:
            process.kill()
            process.wait()
            if process.stderr:
                process.stderr.close()
