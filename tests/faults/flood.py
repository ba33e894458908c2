"""Clients that ask for too much: thousands of connections that say nothing, say it slowly, or ask all at once.

Floods are processes of their own, so that what they do to the neighbour is not what they do to the test's own threads.
Real clients are other machines: these weigh a third of what other processes do. They do not take spare time only, because a busy
host has none. Sockets are closed by reset, so that no port is left waiting.

    python -m tests.faults.flood hold PORT COUNT          says "ready" and holds that many connections until stdin ends
    python -m tests.faults.flood bodies PORT COUNT 0|1    the same, with unfinished bodies, as nobody; 1: opened again
    python -m tests.faults.flood burst PORT NAME COUNT    prints the answers as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

from benchmarks.harness.spare_time import spare_time
from tests.daemon.running import REPO, Answer

NOBODY = 65534
NICE = 5
"""A third of the weight of others (sched(7))."""
UNFINISHED = b"POST /run/neighbour HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
_LINGER_0 = struct.pack("ii", 1, 0)


def connect(port: int) -> socket.socket:
    """One connection that ends by reset."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    return client


@contextmanager
def connections(port: int, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """That many connections at once, each with the first bytes of something sent."""
    clients: list[socket.socket] = []
    try:
        for _ in range(count):
            clients.append(connect(port))
            if first:
                try:
                    clients[-1].sendall(first)
                except ConnectionError:
                    continue  # turned away already
        yield clients
    finally:
        for client in clients:
            client.close()


def ended(clients: Sequence[socket.socket], deadline_s: float) -> tuple[int, set[bytes]]:
    """How many of them the server closes before the deadline, and the first lines that it said."""
    poller = select.poll()
    waiting = {client.fileno(): client for client in clients}
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    ends = time.monotonic() + deadline_s
    said: set[bytes] = set()
    total = len(waiting)
    while waiting and (left_s := ends - time.monotonic()) > 0:
        for fd, _ in poller.poll(left_s * 1000):
            try:
                data = waiting[fd].recv(4096)
            except ConnectionError:
                data = b""
            if data:
                said.add(data.split(b"\r\n")[0])
            else:
                poller.unregister(fd)
                del waiting[fd]
    return total - len(waiting), said


async def burst(port: int, name: str, count: int) -> list[Answer]:
    """`count` requests at the same moment, each on a connection of its own; the events are 0, 1, ..."""

    async def one(number: int) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            body = json.dumps(number).encode()
            head = f"POST /run/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            head_bytes, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        lines = head_bytes.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        return Answer(int(lines[0].split()[1]), headers, answer)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


@contextmanager
def held(port: int, count: int) -> Iterator[None]:
    """That many idle connections of another process, as far as they are taken."""
    with flooding("hold", port, count) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield


@contextmanager
def held_bodies(port: int, count: int, *, again: bool) -> Iterator[None]:
    """That many connections of another user, each with a whole head and the first byte of its body.

    Args: again: those that are ended are opened anew, as fast as that goes."""
    with flooding("bodies", port, count, int(again), first=b"ready\n"):
        yield


def answers_of_burst(port: int, name: str, count: int) -> list[Answer]:
    """What `burst` got, run in another process."""
    with flooding("burst", port, name, count) as process:
        said, _ = process.communicate()
        assert process.returncode == 0
    return [Answer(status, headers, body.encode()) for status, headers, body in json.loads(said)]


@contextmanager
def flooding(*words: str | int, first: bytes = b"") -> Iterator[subprocess.Popen[bytes]]:
    """A process that does what this module's words say, with little weight; what still runs at the end is killed.

    Args: first: what it prints before it goes on without end, in spare time only."""
    command = [sys.executable, "-m", "tests.faults.flood", *map(str, words)]
    with (
        spare_time() as spare,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=REPO, start_new_session=True) as process,
    ):
        try:
            if first:
                assert process.stdout is not None
                assert process.stdout.readline() == first
                spare.take_in(process.pid)
            else:
                weigh_less(process.pid)
            yield process
        finally:
            if first and process.returncode is None:  # nobody has waited for it: its number is its own
                spare.let_out(process.pid)
            process.kill()


def weigh_less(pid: int) -> None:
    """A process that leads a session, where the kernel groups by sessions, or by itself."""
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    with suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


def renew(clients: list[socket.socket], port: int) -> None:
    """Open anew those that have been ended."""
    for place, client in enumerate(clients):
        client.setblocking(False)
        try:
            client.recv(4096)
        except BlockingIOError:
            continue
        except ConnectionError:
            pass
        client.close()
        clients[place] = connect(port)
        with suppress(ConnectionError):
            clients[place].sendall(UNFINISHED)


def main(verb: str, port: str, *rest: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if verb == "bodies":
        connect(int(port)).close()  # with it comes all that is imported late, which nobody may not read
        os.setuid(NOBODY)
        with connections(int(port), int(rest[0]), UNFINISHED) as clients:
            print("ready", flush=True)
            while rest[1] == "1":
                renew(clients, int(port))
            sys.stdin.read()
    elif verb == "hold":
        with connections(int(port), int(rest[0])):
            print("ready", flush=True)
            sys.stdin.read()
    else:
        answers = asyncio.run(burst(int(port), rest[0], int(rest[1])))
        json.dump([[answer.status, answer.headers, answer.body.decode()] for answer in answers], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
