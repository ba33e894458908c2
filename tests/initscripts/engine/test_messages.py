"""Messages and connections between a guest and its app."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sockd_initscripts.engine.messages import INBOX_MESSAGES
from sockd_initscripts.region import OWN_SEGMENT_BYTES
from tests.initscripts.guests import GET, TIRELESS, module
from tests.initscripts.rooms import Room, http_server, room

pytestmark = pytest.mark.anyio

RECEIVE = """
    (call $note (call $recv_msg (i64.const 5) (i32.const 1024)))
    (call $note (i32.load (i32.const 1028)))
    (call $note (call $send_msg (i64.const 6) (i32.load (i32.const 1024)) (i64.const 1) (i64.const 3)))
"""
STARTED = "(drop (call $send_bytes (i64.const 1) (i32.const 0) (i32.const 1)))"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Room]:
    async with room(tmp_path) as made:
        yield made


async def test_a_message_is_received_whether_it_comes_before_or_after(here: Room) -> None:
    function = here.define(module(STARTED + RECEIVE))
    for early in (True, False):
        run, app = here.start(function)
        if not early:
            await app.until("message")
        app.say({"op": "message", "id": 5}, b"hello")
        ran = await here.finish(run, app)
        assert ran.app.notes == [0, 0, 0]
        assert ran.app.contents[6] == b"ell"


@pytest.mark.parametrize("size", [1000, 1_000_000], ids=["copied", "handed over"])
async def test_a_file_is_the_apps_and_the_buffer_is_empty_if_it_was_not_copied(here: Room, size: int) -> None:
    content = os.urandom(size)
    body = """
        (local.set $a (call $connect @address))
        (call $note (call $send_rpc (local.get $a) (i64.const 7) @method (i32.const 0) (i32.const 0)))
        (call $note (call $recv_rpc_reply (local.get $a) (i64.const 7) (i32.const 1024)))
        (call $note (call $send_file (i64.const 8) (i32.load (i32.const 1024))))
        (call $note (call $send_file (i64.const 8) (i32.load (i32.const 1024))))
        (call $note (call $send_file (i64.const 9) (i32.const 99)))
        (call $note (call $buf_read (i32.load (i32.const 1024)) (i64.const 0) (i32.const 2048) (i32.const 4)))"""
    async with http_server(file=content) as server:
        ran = await here.run(module(body, address=server.address, method="GET /file"))
    left = 4 if size < OWN_SEGMENT_BYTES else 0
    assert ran.app.notes == [0, 0, 0, -errno.EEXIST, -errno.EBADF, left]
    (message,) = (each for each in ran.app.said if each["op"] == "file")
    assert (message["id"], message["status"], message["length"]) == (8, 200, size)
    assert ran.app.contents[8] == content
    assert [record.id for record in ran.report.messages if record.bytes == size] == [8]


async def test_a_wait_for_a_message_ends_when_the_app_goes(here: Room) -> None:
    run, app = here.start(here.define(module(STARTED + "(call $exit (call $recv_msg (i64.const 5) (i32.const 1024)))")))
    await app.until("message")
    app.close()
    assert (await run.done).outcome == "cancelled"


async def test_an_app_that_sends_more_than_anybody_receives(here: Room) -> None:
    run, app = here.start(here.define(module(RECEIVE)))
    for number in range(INBOX_MESSAGES + 1):
        app.say({"op": "message", "id": 100 + number}, b"x")
    assert (await run.done).outcome == "cancelled"
    app.close()


async def test_an_idle_connection_goes_to_the_app(here: Room) -> None:
    body = GET + "(call $note (call $transfer_conn (i64.const 3) (i32.const 0) (i32.const 0) (local.get $a)))"
    body += "(call $note (call $send_rpc (local.get $a) (i64.const 8) @method (i32.const 0) (i32.const 0)))"
    async with http_server(hello=b"hello") as server:
        run, app = here.start(here.define(module(body, address=server.address, method="GET /hello")))
        said = await app.until("connection")
        assert (said["id"], said["addr"], said["kind"]) == (3, server.address, "tcp")
        assert said["tls_server_name"] is None
        (fd,) = app.fds
        sock = socket.socket(fileno=os.dup(fd))
        assert sock.getsockname() == server.peers[0]
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"GET /hello HTTP/1.1\r\n\r\n")
        assert (await loop.sock_recv(sock, 1000)).endswith(b"hello")
        sock.close()
        ran = await here.finish(run, app)
        assert len(server.peers) == 1
    assert ran.app.notes[4:] == [0, -errno.EBADF]


async def test_a_connection_with_an_rpc_under_way_stays(here: Room) -> None:
    never = asyncio.Event()
    body = """
        (local.set $a (call $connect @address))
        (call $note (call $send_rpc (local.get $a) (i64.const 7) @method (i32.const 0) (i32.const 0)))
        (call $note (call $transfer_conn (i64.const 3) (i32.const 0) (i32.const 0) (local.get $a)))"""
    async with http_server(slow=never.wait) as server:
        ran = await here.run(module(body, address=server.address, method="GET /slow"))
    assert ran.app.notes == [0, -errno.EBUSY]


async def test_a_connection_of_the_app_is_used(here: Room) -> None:
    body = GET.replace("(call $connect @address)", "(call $get_conn (i64.const 4) (i32.const 0) (i32.const 0))")
    async with http_server(hello=b"hello") as server:
        run, app = here.start(here.define(module(body, method="GET /hello")))
        sock = socket.socket()
        sock.setblocking(False)
        host, port = server.address.removeprefix("http://").split(":")
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        app.say({"op": "connection", "id": 4, "addr": server.address}, fd=sock.fileno())
        sock.close()
        ran = await here.finish(run, app)
        assert len(server.peers) == 1
    assert ran.app.notes == [0, 0, 200, 0]
    assert ran.app.contents[7] == b"hello"


async def test_what_an_app_sends_as_a_connection_and_is_none(here: Room) -> None:
    body = "(call $note (call $get_conn (i64.const 4) @address))"
    run, app = here.start(here.define(module(STARTED + body, address="http://127.0.0.1:1")))
    await app.until("message")
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    app.say({"op": "connection", "id": 4, "addr": ""}, fd=fd)  # no socket: as if it had not been said
    os.close(fd)
    ours, theirs = socket.socketpair()
    app.say({"op": "connection", "id": 4, "addr": ""}, fd=theirs.fileno())
    theirs.close()
    ran = await here.finish(run, app)
    ours.close()
    assert ran.app.notes == [-errno.EOPNOTSUPP]


async def test_connections_that_no_one_asked_for_are_closed(here: Room) -> None:
    run, app = here.start(here.define(module(RECEIVE)))
    ours, theirs = socket.socketpair()
    app.say({"op": "connection", "id": 4, "addr": "x"}, fd=theirs.fileno())
    theirs.close()
    app.say({"op": "message", "id": 5}, b"hello")
    await here.finish(run, app)
    ours.settimeout(5)
    assert ours.recv(1) == b""
    ours.close()


async def test_an_app_that_does_not_read_holds_up_no_one(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, guest_ended = asyncio.Event(), here.engine._guest_ended

    def note_end(*about: Any) -> None:
        guest_ended(*about)
        ended.set()

    monkeypatch.setattr(here.engine, "_guest_ended", note_end)
    text = "x" * 200
    count = 900
    body = f"""(loop $more
        (drop (call $send_rpc_buf (i32.const -1) (i64.const 0) @text (i32.const 1) (i64.const 0) (i64.const 0)))
        (drop (call $send_bytes (i64.extend_i32_u (local.get $b)) (i32.const 0) (i32.const 1)))
        (local.set $b (i32.add (local.get $b) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $b) (i32.const {count}))))"""
    run, app = here.start(here.define(module(body, text=text), budget=TIRELESS))
    await ended.wait()
    ran = await here.finish(run, app)
    assert list(ran.app.contents) == [*range(99), *range(100, count)] or len(ran.app.contents) == count
    assert len(ran.report.messages) == count
