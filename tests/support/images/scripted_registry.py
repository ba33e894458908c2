"""A registry that does what a test asks for: tokens, redirects, broken connections, wrong answers. In threads of the test."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Handler = http.server.BaseHTTPRequestHandler
TOKEN = "token-1"


@dataclass
class Script:
    """What it has and how it behaves; `requests` is what it was sent."""

    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """By tag or digest: data and media type."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    wants: str = ""
    """"Bearer" or "Basic": what a request must have."""
    realm: str = ""
    """The address of the token server; empty for the registry's own."""
    accepted: set[str] = field(default_factory=lambda: {f"Bearer {TOKEN}"})
    tokens: list[str] = field(default_factory=lambda: [TOKEN])
    """What the token server gives, one after the other; the last for ever."""
    token_credentials: str = ""
    """The Authorization header that the token server wants."""
    redirect: str = ""
    """Where blobs are: a URL before /v2/."""
    break_after: list[int] = field(default_factory=list)
    """For each of the next answers with a blob, the bytes after which the connection breaks."""
    said: bytes = b"{}"
    """The body of those answers."""
    answers: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    """By a part of the path: statuses and headers that come first."""
    has_range: bool = True
    range_shift: int = 0
    """How far the part that is sent is from the one that was asked for."""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers."""
    begun: threading.Event = field(default_factory=threading.Event)
    """Set by the first request."""

    def count(self, part: str) -> int:
        return sum(part in path for _, path, _ in self.requests)

    def authorizations(self, part: str = "") -> Counter[str]:
        return Counter(headers.get("Authorization", "") for _, path, headers in self.requests if part in path)


class _Handler(Handler):
    script: Script
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self._answer(f"{self.path}?{body}")

    def do_GET(self) -> None:
        self._answer(self.path)

    def _answer(self, path: str) -> None:
        script = self.script
        script.begun.set()
        script.requests.append((self.command, path, dict(self.headers)))
        for part, answers in script.answers.items():
            if part in path and answers:
                status, headers = answers.pop(0)
                return self._send(status, script.said, headers)
        if path.startswith("/token"):
            return self._token()
        if script.wants and self.headers.get("Authorization") not in script.accepted:
            realm = script.realm or f"http://{self.headers['Host']}/token"
            challenge = f'{script.wants} realm="{realm}",service="registry",scope="repository:team/app:pull"'
            text = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "log in\x07 first"}]}).encode()
            return self._send(401, text, {"WWW-Authenticate": challenge})
        if found := re.fullmatch(r"/v2/team/app/manifests/(.*)", path):
            if found[1] not in script.manifests:
                return self._send(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', {})
            data, media_type = script.manifests[found[1]]
            return self._send(200, data, {"Content-Type": media_type})
        if found := re.fullmatch(r"/v2/team/app/blobs/(.*)", path):
            if script.redirect:
                return self._send(307, b"", {"Location": f"{script.redirect}{path}"})
            return self._blob(script.blobs[found[1]])
        self._send(404, b"", {})

    def _token(self) -> None:
        script = self.script
        if script.token_credentials and self.headers.get("Authorization") != script.token_credentials:
            return self._send(401, b"{}", {})
        token = script.tokens[0] if len(script.tokens) == 1 else script.tokens.pop(0)
        self._send(200, json.dumps({"token": token}).encode(), {})

    def _blob(self, data: bytes) -> None:
        script, start, headers = self.script, 0, {}
        asked = self.headers.get("Range", "")
        if asked and script.has_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + script.range_shift
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        most = script.break_after.pop(0) if script.break_after else None
        self._send(206 if headers else 200, data[start:], headers, most)

    def _send(self, status: int, data: bytes, headers: dict[str, str], most: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data[:most])
        if most is not None:
            self.close_connection = True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that has had enough


@contextlib.contextmanager
def scripted_registry(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """HOST:PORT of it, until the block ends."""
    handler: Callable[..., Handler] = type("Handler", (_Handler,), {"script": script})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def raw_registry(answer: bytes) -> Iterator[str]:
    """HOST:PORT of a server that sends the same bytes to each request, and closes; until the block ends."""

    class Raw(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self.rfile.readline().startswith(b"GET "):  # not the beginning of TLS
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(answer)

    class Server(socketserver.ThreadingTCPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    with Server(("127.0.0.1", 0), Raw) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
