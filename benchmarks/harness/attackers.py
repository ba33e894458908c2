"""Clients that ask for too much, each a process of its own: python -m benchmarks.harness.attackers KIND HOST PORT COUNT.

Real clients are other machines and use none of the worker's processors. These run on them, so their starter gives them only time
that no other process wants (`spare_time.py`): what a neighbour notices is then the worker's doing.

    burst    COUNT requests at the same moment, each on a connection of its own, and again when all are answered
    flood    COUNT connections that say nothing, and again
    slow     COUNT connections that send a byte of a head every 10 ms
    large    COUNT connections that each send 7 MB, which is more than is taken, again and again
    loop     nothing: computes

Each prints "ready" once it has begun, ends with its stdin, and says then how much it has offered a second: requests,
connections, bytes of heads, megabytes of bodies.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import sys
import threading
import time

from benchmarks.harness.client import request

LINGER_0 = struct.pack("ii", 1, 0)
"""Close by reset, so that no port is left waiting."""
LARGE_BYTES = 7_000_000
FUNCTION = "victim"


class Offered:
    """How much an attack has asked a server to take."""

    def __init__(self) -> None:
        self.amount = 0.0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def add(self, amount: float) -> None:
        """More of it, by any thread."""
        with self._lock:
            self.amount += amount

    def per_second(self) -> float:
        return self.amount / (time.monotonic() - self._since)


offered = Offered()


def connect(address: tuple[str, int]) -> socket.socket:
    """A connection on its way."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    client.setblocking(False)
    client.connect_ex(address)
    return client


def burst(address: tuple[str, int], count: int) -> None:
    """One burst; returns when the last has its answer or its end."""
    data = request(FUNCTION).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            selector.register(connect(address), selectors.EVENT_WRITE)
        while selector.get_map():
            for key, events in selector.select():
                client: socket.socket = key.fileobj  # type: ignore[assignment]
                try:
                    if events & selectors.EVENT_WRITE:
                        client.send(data)
                        offered.add(1)
                        selector.modify(client, selectors.EVENT_READ)
                        continue
                    if client.recv(1 << 16):
                        continue
                except OSError:
                    pass
                selector.unregister(client)
                client.close()


def flood(address: tuple[str, int], count: int) -> None:
    """That many connections at once; returns when they are closed again."""
    clients = []
    for _ in range(count):
        clients.append(connect(address))
        offered.add(1)
    for client in clients:
        client.close()


def slow(address: tuple[str, int], count: int) -> None:
    """That many connections with heads that take 10 s; returns when all are over."""
    clients = [connect(address) for _ in range(count)]
    time.sleep(0.1)
    for byte in b"POST /run/neighbour HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1000:
        for client in clients:
            try:
                offered.add(client.send(bytes([byte])))
            except OSError:
                continue
        time.sleep(0.01)
    for client in clients:
        client.close()


def large(address: tuple[str, int], count: int) -> None:
    """One body each."""
    head = f"POST /run/{FUNCTION} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"

    def send() -> None:
        try:
            with socket.create_connection(address) as client:
                client.sendall(head)
                for _ in range(LARGE_BYTES // 0x10000):
                    client.sendall(chunk)
                    offered.add(len(chunk) / 1e6)
        except OSError:
            return

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def loop(address: tuple[str, int], count: int) -> None:
    """Computes, as `main` calls it again and again."""


ATTACKS = {"burst": burst, "flood": flood, "slow": slow, "large": large, "loop": loop}


def end() -> None:
    """When nobody wants it any more, in the middle of whatever it does."""
    sys.stdin.read()
    try:
        print(offered.per_second(), flush=True)
    finally:
        os._exit(0)


def main(kind: str, host: str, port: str, count: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.Thread(target=end).start()
    print("ready", flush=True)
    while True:
        ATTACKS[kind]((host, int(port)), int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
