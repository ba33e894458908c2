"""Peers of a cache server: shards by gRPC, each a while after it was asked for: `python -m benchmarks.peers.shards`.

Prints its port, and ends with its standard input. `/vectordb.Shards/Get` of `message GetShard { string name = 1; }`, as in the
example vector_db of the initscripts.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from benchmarks.harness.worker import REPOSITORY
from benchmarks.peers.shaping_proxy import FIRST_BYTE_MS

GET = "/vectordb.Shards/Get"
LINES, LINE_BYTES, KEY_BYTES = 1000, 1024, 16


def key(name: str, number: int) -> str:
    """The key of a line of a shard."""
    return f"{name}-{number}".ljust(KEY_BYTES, ".")


def shard(name: str) -> bytes:
    """The lines of a shard; each ends in its number."""
    return b"".join(key(name, number).encode() + b"%1008d" % number for number in range(LINES))


@contextlib.contextmanager
def peers() -> Iterator[int]:
    """A process with all shards; yields its port."""
    command = [sys.executable, "-m", "benchmarks.peers.shards"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdin and process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def main() -> None:
    """Serve until the standard input ends."""
    import grpc

    class Shards(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(get) if handler_call_details.method == GET else None

    made: dict[bytes, bytes] = {}

    def get(request: bytes, context: Any) -> bytes:
        began_s = time.monotonic()
        name = request[2:]
        data = made.get(name) or made.setdefault(name, shard(name.decode()))
        time.sleep(max(0.0, FIRST_BYTE_MS / 1000 - (time.monotonic() - began_s)))
        return data

    server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Shards(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
