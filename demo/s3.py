"""An S3 of our own for the demonstration: moto's server in a process on loopback, and the three calls that the demo makes.

moto looks whether there is a signature but not at it, so plain HTTP is enough here; the deployed function uses boto3.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

CREDENTIAL = (
    "AWS4-HMAC-SHA256 Credential=demo/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=unchecked"
)
SERVE = """\
import logging
import threading
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would write a line per request
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""


class S3:
    """A running server."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def make_bucket(self, bucket: str) -> None:
        self._call("PUT", bucket)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._call("PUT", f"{bucket}/{key}", data)

    def get(self, bucket: str, key: str) -> bytes:
        return self._call("GET", f"{bucket}/{key}")

    def _call(self, method: str, path: str, data: bytes | None = None) -> bytes:
        # urllib's default type for a body is a form, which moto would try to read.
        headers = {"Content-Type": "image/jpeg", "Authorization": CREDENTIAL}
        request = urllib.request.Request(f"{self.endpoint}/{path}", data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
            return body


@contextlib.contextmanager
def embedded_s3() -> Iterator[S3]:
    """A server that ends with the context. Raises RuntimeError when it does not start (its words are on stderr)."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the embedded S3 did not start; is moto installed?")
        yield S3(f"http://127.0.0.1:{port}")
    finally:
        process.kill()  # it keeps everything in memory, and would wait for its clients' connections otherwise
        process.communicate()
