"""Initscripts of functions that trust authorities of their own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.daemon.prefetching import READY, digest, fetching, reading, spans, trace
from tests.daemon.running import RunningDaemon
from tests.support.certificates import make_certificate

pytestmark = pytest.mark.root
OBJECT = b"an object"


class _Objects(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(OBJECT)))
        self.end_headers()
        self.wfile.write(OBJECT)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls") / "ca.pem")


@pytest.fixture
def url(certificate: Path) -> Iterator[str]:
    """A server whose every path is OBJECT."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Objects) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_script_trusts_what_the_aws_ca_bundle_of_its_function_names(
    daemon: RunningDaemon, url: str, certificate: Path
) -> None:
    """What it could not fetch the function asks for itself, which nobody answers here."""
    for name, trusted, reported in (("trusts", "ca.pem", "200"), ("distrusts", "absent.pem", "failed: tls")):
        environment = {"AWS_ENDPOINT_URL_S3": url, "AWS_CA_BUNDLE": trusted, "SOCKD_STORAGE_GRACE_S": "5"}
        environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        files = reading(init_wasm=fetching("a"), ca_pem=certificate.read_text())
        daemon.deploy(name, files, storage="sockd", env=environment, initscript={"wasm": "init.wasm"})
        daemon.wait_line(READY)
        answer = daemon.run(name, {"keys": ["a"]})
        shown = trace(daemon, answer)
        (rpc,) = spans(shown, "rpc")
        assert rpc["detail"].startswith(reported)
        assert (answer.json == [digest(OBJECT)]) is (trusted == "ca.pem")
