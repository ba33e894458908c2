"""Who is let in, when, and what happens when there is no descriptor for one more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys

import pytest

from sockd.http.server.listening.listener import Listener
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.listening.turns import Turns

pytestmark = pytest.mark.anyio


class Short:
    """A listening socket whose process has no descriptors left, at first."""

    def __init__(self, sock: socket.socket, refusals: int) -> None:
        self._sock = sock
        self.refusals = refusals

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.mark.parametrize("refusals", [0, 2])
async def test_all_who_speak_are_let_in_even_if_there_was_no_room_for_a_while(refusals: int) -> None:
    loop = asyncio.get_running_loop()
    (sock,) = bind_tcp("127.0.0.2:0")  # a loopback of which there is one
    inside: list[socket.socket] = []
    rooms: list[None] = []

    def let_in(client: socket.socket) -> int:
        inside.append(client)
        return 1

    short = Short(sock, refusals)
    listener = Listener(short, Turns(), let_in, lambda: rooms.append(None))  # type: ignore[arg-type]
    clients = [socket.socket() for _ in range(20)]
    try:
        for client in clients:
            client.setblocking(False)
            await loop.sock_connect(client, sock.getsockname())
            await loop.sock_sendall(client, b"x")
        while len(inside) < len(clients):
            await asyncio.sleep(0)
        assert len(rooms) == refusals
        assert {each.getpeername() for each in inside} == {client.getsockname() for client in clients}
    finally:
        listener.close()
        for each in (*clients, *inside):
            each.close()


async def test_who_says_nothing_is_let_in_later_and_who_speaks_at_once() -> None:
    loop = asyncio.get_running_loop()
    (sock,) = bind_tcp("127.0.0.2:0")  # a loopback of which there is one
    inside: asyncio.Queue[socket.socket] = asyncio.Queue()

    def let_in(client: socket.socket) -> int:
        inside.put_nowait(client)
        return 1

    listener = Listener(sock, Turns(), let_in, lambda: None)
    with socket.socket() as silent, socket.socket() as speaking:
        for client in (silent, speaking):
            client.setblocking(False)
            await loop.sock_connect(client, sock.getsockname())
        await loop.sock_sendall(speaking, b"x")
        with await inside.get() as first, await inside.get() as second:
            assert first.getpeername() == speaking.getsockname()
            assert second.getpeername() == silent.getsockname()
    listener.close()


SERVER = """
import socket
from sockd.http.server.listening.sockets import bind_tcp, closed_first
(sock,) = map(closed_first, bind_tcp("127.0.0.2:0"))
sock.listen()
others = [socket.socketpair() for _ in range(40)]
print(sock.getsockname()[1], flush=True)
client, _ = sock.accept()
client.recv(1)
client.sendall(b"x")
client.recv(1)
"""


async def test_a_process_that_is_killed_accepts_no_one_after_it_has_cut_a_connection() -> None:
    command = [sys.executable, "-c", SERVER]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        address = "127.0.0.2", int(await process.stdout.readline())
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            process.kill()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(1) == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
