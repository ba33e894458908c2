"""The services that initscripts talk to besides S3, for tests and for trying the examples by hand.

    python -m tests.support.servers.peers vector_db [PORT]      gRPC; prints grpc://127.0.0.1:PORT
    python -m tests.support.servers.peers sqs [PORT]            queue `work`, keys from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY;
                                                        every line of the standard input is sent to it
    python -m tests.support.servers.peers lines [PORT]          tcp://; the value of `key` is `value`

All end when their standard input does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sockd.base.sigv4.canonical import Credentials
from tests.support.servers.line_server import LineServer
from tests.support.servers.sqs import Sqs

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def vector_db() -> Iterator[str]:
    """grpc://host:port of a server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.servers.peers", "vector_db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin and process.stdout
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("the vector database did not start")
        yield url
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main(kind: str, port: int) -> None:
    """Serve until the standard input ends."""
    match kind:
        case "vector_db":
            from tests.support.servers import vector_db as shards  # needs grpcio, which the others do not

            server, port = shards.serve(port)
            print(f"grpc://127.0.0.1:{port}", flush=True)
            sys.stdin.read()
            server.stop(None).wait()
        case "sqs":
            keys = os.environ.get("AWS_ACCESS_KEY_ID", "sockd"), os.environ.get("AWS_SECRET_ACCESS_KEY", "sockd")
            with Sqs(Credentials(*keys), port) as sqs:
                print(sqs.url, flush=True)
                for line in sys.stdin:
                    print(sqs.send("work", line.rstrip("\n")), flush=True)
        case "lines":
            with LineServer({"key": b"value"}, port) as lines:
                print(lines.url, flush=True)
                sys.stdin.read()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
