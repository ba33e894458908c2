"""What receiving straight into the region saves: one object from loopback, both ways, and how an app gets at it.

    python -m sockd_initscripts.rpc.comparison [BYTES] [ROUNDS]        prints a JSON object: milliseconds, p50

Rounds are interleaved, each into a fresh region, as a run's is. Owns its server, a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.base import RpcTiming
from sockd_initscripts.rpc.dialer import Dialer
from sockd_initscripts.rpc.policy import EndpointPolicy
from sockd_initscripts.rpc.pool import ConnectionPool

Milliseconds = dict[str, list[float]]


def compare(size: int, rounds: int) -> dict[str, float]:
    """p50 in ms of: `region` (received in place), `copied` (read into bytes, then copied to the region), and what an app
    does to have the bytes: `app_view` (map the segment, take a memoryview), `app_bytes` (receive them over a Unix socket)."""
    command = [sys.executable, "-m", "sockd_initscripts.rpc.comparison", "serve", str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        times = asyncio.run(_rounds(int(server.stdout.readline()), size, rounds))
        server.stdin.close()
    return {name: round(statistics.median(column), 3) for name, column in times.items()}


async def _rounds(port: int, size: int, rounds: int) -> Milliseconds:
    times: Milliseconds = {"region": [], "copied": [], "app_view": [], "app_bytes": []}
    pool = ConnectionPool()
    connection = Dialer({}, EndpointPolicy(), pool).connect(f"http://127.0.0.1:{port}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for round_number in range(rounds + 1):
        region = Region(2 * size + (1 << 20))
        began_ns = time.perf_counter_ns()
        reply = await connection.call("GET /", b"", region, RpcTiming())
        _note(times, "region", began_ns)
        assert reply.buffer is not None and reply.buffer.length == size
        _app(times, reply.buffer.segment.take_fd(), reply.buffer.view)
        began_ns = time.perf_counter_ns()
        await _copy(reader, writer, region)
        _note(times, "copied", began_ns)
        if round_number == 0:  # connections are new, and so is everything else
            for column in times.values():
                column.clear()
        del reply
        region.close()
    writer.close()
    await writer.wait_closed()
    await pool.aclose()
    return times


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, region: Region) -> None:
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length
    body = await reader.readexactly(int(length[1]))
    region.allocate(len(body)).view[:] = body


def _app(times: Milliseconds, fd: int | None, view: memoryview) -> None:
    assert fd is not None
    began_ns = time.perf_counter_ns()
    with mmap.mmap(fd, len(view), prot=mmap.PROT_READ) as mapped, memoryview(mapped) as seen:
        assert len(seen) == len(view)
        _note(times, "app_view", began_ns)
    os.close(fd)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=ours.sendall, args=(view,))
        began_ns = time.perf_counter_ns()
        sender.start()
        received = bytearray(len(view))
        theirs.recv_into(received, flags=socket.MSG_WAITALL)
        _note(times, "app_bytes", began_ns)
        sender.join()


def _note(times: Milliseconds, name: str, began_ns: int) -> None:
    times[name].append((time.perf_counter_ns() - began_ns) / 1e6)


def serve(size: int) -> None:
    """Answer each request with so many bytes; print the port, end with stdin."""
    body = os.urandom(size)
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode()

    def answer(accepted: socket.socket) -> None:
        with accepted:
            while accepted.recv(65536):
                accepted.sendall(head)
                accepted.sendall(body)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        serve(int(arguments[1]))
        return
    size, rounds = (*map(int, arguments), *(15_000_000, 31)[len(arguments) :])
    print(json.dumps({"bytes": size, "rounds": rounds, "ms": compare(size, rounds)}))


if __name__ == "__main__":
    main(sys.argv[1:])
