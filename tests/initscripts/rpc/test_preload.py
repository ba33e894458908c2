"""What was loaded once works where there are no files any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[3]
# In an empty root: nothing can be imported, no certificate read, no library opened.
SCRIPT = """
import asyncio, os, ssl, sys
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcFailed, RpcTiming, preload

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n2\\r\\nok\\r\\n0\\r\\n\\r\\n")
    writer.close()

async def main():
    tls = await preload()
    assert tls.cert_store_stats()["x509_ca"] > 0
    tls.load_verify_locations(sys.argv[1])
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(sys.argv[1])
    os.chroot(sys.argv[2])
    os.chdir("/")
    region = MemoryRegion()
    pool = ConnectionPool(tls=tls)
    for scheme, context in (("http", None), ("https", server_tls)):
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": url}
        dialer = Dialer(env, EndpointPolicy(), pool)
        for address, method, body in (
            (url, "GET /", b""), ("s3:", "ListObjectsV2", b'{"bucket": "b"}'),
            ("s3:", "GetObject", b'{"bucket": "b", "key": "k"}'), ("sqs:", "ReceiveMessage", b"{}"),
        ):
            reply = await dialer.connect(address).call(method, body, region, RpcTiming())
            assert reply.status == 200, (address, reply)
        server.close()
    for address, method, reason in (
        ("grpc://127.0.0.1:9", "/a.B/C", "refused"), ("http://nowhere.invalid", "GET /", "unresolved"),
        ("https://a..b", "GET /", "unresolved"), ("tcp://127.0.0.1:9", "line", "refused"),
    ):
        try:
            await dialer.connect(address).call(method, b"", region, RpcTiming())
        except RpcFailed as failure:
            assert failure.reason == reason, (address, failure)
        else:
            raise AssertionError(address)
    await pool.aclose()
    print("done")

class MemoryRegion:
    def allocate(self, size):
        return type("Buffer", (), {"view": memoryview(bytearray(size)), "length": size, "shrink": lambda *_: None})()

asyncio.run(main())
"""


def test_everything_works_in_an_empty_root(certificate: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(certificate), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
