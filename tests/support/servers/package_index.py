"""A package index on loopback (the simple repository API, PEP 503) and the wheels in it, made by the test that uses it.

Real uv talks to it as it talks to any index; what it serves can be slow, broken or hostile as no public index would be.
"""

from __future__ import annotations

import base64
import hashlib
import io
import ssl
import tarfile
import textwrap
import threading
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def wheel(
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    modes: Mapping[str, int] | None = None,
    level: int | None = None,
) -> tuple[str, bytes]:
    """(file name, bytes) of a wheel with these files.

    Args:
        modes: st_mode of files that should not be a plain 0644 file; level: of the compression."""
    stem = f"{name.replace('-', '_')}-{version}"
    contents = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    contents[f"{stem}.dist-info/METADATA"] = "".join(
        [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {each}\n" for each in requires),
        ]
    ).encode()
    contents[f"{stem}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in contents.items()
    )
    contents[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, level)
    return f"{stem}-{tag}.whl", packed.getvalue()


BACKEND = """
import base64, hashlib, os, sys, urllib.request, zipfile
NAME, VERSION, INDEX = {name!r}, {version!r}, {index!r}
METADATA = f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n"
STEM = f"{{NAME.replace('-', '_')}}-{{VERSION}}"
def prepare_metadata_for_build_wheel(directory, settings=None):
    os.makedirs(f"{{directory}}/{{STEM}}.dist-info")
    with open(f"{{directory}}/{{STEM}}.dist-info/METADATA", "w") as file:
        file.write(METADATA)
    return f"{{STEM}}.dist-info"
def make(directory, files, filename=f"{{STEM}}-py3-none-any.whl"):
    info = {{f"{{STEM}}.dist-info/METADATA": METADATA,
             f"{{STEM}}.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}}
    names = [*info, *files, f"{{STEM}}.dist-info/RECORD"]
    with zipfile.ZipFile(f"{{directory}}/{{filename}}", "w") as wheel:
        for path, text in {{**info, **files}}.items():
            wheel.writestr(path, text)
        wheel.writestr(names[-1], "".join(f"{{each}},,\\n" for each in names))
    return filename
def say(word):
    try:
        urllib.request.urlopen(f"{{INDEX}}/said-{{NAME}}-{{word}}/").close()
    except (OSError, ValueError):
        pass
def build_wheel(directory, settings=None, metadata=None):
    say("built")
"""


def sdist(name: str, version: str, build: str, *, index: str = "") -> tuple[str, bytes]:
    """(file name, bytes) of a source distribution with a build backend of its own, which requires nothing.

    Args: build: the body of its `build_wheel(directory)`, which may call `make(directory, files)` and `say(word)`: a request
        to the index."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, version=version, index=index)
        + textwrap.indent(textwrap.dedent(build), "    "),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{stem}.tar.gz", packed.getvalue()


class PackageIndex(ThreadingHTTPServer):
    """The index. Files added to it are there at once; `url` is what uv is given."""

    daemon_threads = True

    def __init__(self, *, credentials: str = "", tls: ssl.SSLContext | None = None) -> None:
        """Args: credentials: "user:password" that each request must bring."""
        super().__init__(("127.0.0.1", 0), _Requests)
        self.authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}" if credentials else ""
        self._scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        """Paths that were asked for, oldest first."""
        self.stalled: set[str] = set()
        """Files of which only the first half is sent, and then nothing until the client goes away."""
        self.stalling = threading.Event()
        """Set when a stalled file's first half is on its way."""
        self.abandoned = threading.Event()
        """Set when a client that waited for a stalled file has gone."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_port}/simple"

    def add(self, file: tuple[str, bytes]) -> str:
        """Publishes a file; returns its sha256."""
        self.files[file[0]] = file[1]
        return hashlib.sha256(file[1]).hexdigest()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def file_url(self, filename: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_port}/files/{filename}"


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PackageIndex

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self._is_stranger():
            return
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "simple":
            page = self._page(name)
            return self._answer(200 if page else 404, page.encode(), "text/html")
        data = self.server.files.get(name)
        if name in self.server.stalled and data:
            return self._stall(data)
        return self._answer(200 if data else 404, data or b"", "application/octet-stream")

    def do_HEAD(self) -> None:
        if self._is_stranger():
            return
        name = self.path.strip("/").partition("/")[2]
        self._head(200 if name in self.server.files else 404, len(self.server.files.get(name, b"")), "application/zip")

    def _is_stranger(self) -> bool:
        """Return whether a request has no credentials though it must, after answering it with that error."""
        wanted = self.server.authorization
        if not wanted or self.headers.get("Authorization") == wanted:
            return False
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _page(self, project: str) -> str:
        links = [
            f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>'
            for name, data in self.server.files.items()
            if name.split("-")[0].replace("_", "-").lower() == project
        ]
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>" if links else ""

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self._head(status, len(body), content_type)
        self.wfile.write(body)

    def _stall(self, data: bytes) -> None:
        self._head(200, len(data), "application/octet-stream")
        self.wfile.write(data[: len(data) // 2])
        self.server.stalling.set()
        self.close_connection = True
        with suppress(ConnectionResetError):
            self.rfile.read(1)
        self.server.abandoned.set()

    def _head(self, status: int, length: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()
