"""Host functions given what they cannot take: every one answers with its errno, and the guest goes on."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd_initscripts.limits import Budget
from tests.initscripts.guests import GET, module
from tests.initscripts.rooms import Room, http_server, room

pytestmark = pytest.mark.anyio

PAGE = 64 * 1024
OUTSIDE = (PAGE, PAGE - 3, -1, -PAGE, 0x7FFF_FFFF)
"""Pointers to less than eight bytes of a memory with one page; some as hostile as an i32 can be."""


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Room]:
    async with room(tmp_path) as made:
        yield made


def noting(*calls: str) -> str:
    return "\n".join(f"(call $note {call})" for call in calls)


POINTERS = (
    "(call $connect (i32.const {p}) (i32.const 8))",
    "(call $send_rpc (local.get $a) (i64.const 70) (i32.const {p}) (i32.const 8) (i32.const 0) (i32.const 0))",
    "(call $send_rpc (local.get $a) (i64.const 70) (i32.const 0) (i32.const 0) (i32.const {p}) (i32.const 8))",
    "(call $send_rpc_buf (local.get $a) (i64.const 70) (i32.const {p}) (i32.const 8) (i32.const 1) (i64.const 0) (i64.const 0))",
    "(call $recv_rpc_reply (local.get $a) (i64.const 7) (i32.const {p}))",
    "(call $buf_read (i32.const 1) (i64.const 0) (i32.const {p}) (i32.const 8))",
    "(call $send_bytes (i64.const 2) (i32.const {p}) (i32.const 8))",
    "(call $recv_msg (i64.const 3) (i32.const {p}))",
    "(call $transfer_conn (i64.const 4) (i32.const {p}) (i32.const 8) (local.get $a))",
    "(call $get_conn (i64.const 5) (i32.const {p}) (i32.const 8))",
    "(call $input_read (i32.const 0) (i32.const {p}) (i32.const 8))",
)


@pytest.mark.parametrize("pointer", OUTSIDE)
async def test_a_pointer_out_of_memory_is_efault_everywhere(here: Room, pointer: int) -> None:
    async with http_server(hello=b"hello") as server:
        body = GET + noting(*(call.format(p=pointer) for call in POINTERS))
        ran = await here.run(module(body, address=server.address, method="GET /hello"), b"eight bytes")
    assert ran.app.notes == [0, 0, 200, 0] + [-errno.EFAULT] * len(POINTERS)
    assert ran.report.outcome == "exit"


async def test_a_length_that_wraps_around_is_efault(here: Room) -> None:
    body = noting(
        "(call $send_bytes (i64.const 2) (i32.const 16) (i32.const -1))",
        "(call $send_bytes (i64.const 2) (i32.const -16) (i32.const 32))",
    )
    assert (await here.run(module(body))).app.notes == [-errno.EFAULT] * 2


async def test_the_last_bytes_of_memory_are_within(here: Room) -> None:
    body = noting(f"(call $send_bytes (i64.const 2) (i32.const {PAGE - 8}) (i32.const 8))")
    assert (await here.run(module(body))).app.notes == [0]


async def test_bad_handles_and_connections_are_ebadf(here: Room) -> None:
    calls = []
    for bad in (-1, 0, 2, 99, 0x7FFF_FFFF):
        calls += [
            f"(call $buf_read (i32.const {bad}) (i64.const 0) (i32.const 0) (i32.const 8))",
            f"(call $send_msg (i64.const 1) (i32.const {bad}) (i64.const 0) (i64.const 0))",
            f"(call $send_rpc_buf (local.get $a) (i64.const 8) @method (i32.const {bad}) (i64.const 0) (i64.const 0))",
        ]
    for bad in (-1, 1, 99):
        calls += [
            f"(call $send_rpc (i32.const {bad}) (i64.const 8) @method (i32.const 0) (i32.const 0))",
            f"(call $recv_rpc_reply (i32.const {bad}) (i64.const 7) (i32.const 0))",
            f"(call $transfer_conn (i64.const 8) (i32.const 0) (i32.const 0) (i32.const {bad}))",
        ]
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(GET + noting(*calls), address=server.address, method="GET /hello"))
    assert ran.app.notes[4:] == [-errno.EBADF] * len(calls)


async def test_slices_out_of_a_buffer_are_einval(here: Room) -> None:
    calls = []
    for offset, length in ((0, 6), (6, 0), (-1, 2), (3, -1), (5, 1), (2**62, 2**62)):
        calls += [f"(call $send_msg (i64.const 1) (i32.const 1) (i64.const {offset}) (i64.const {length}))"]
    calls += [f"(call $buf_read (i32.const 1) (i64.const {offset}) (i32.const 0) (i32.const 1))" for offset in (-1, 6)]
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(GET + noting(*calls), address=server.address, method="GET /hello"))
    assert ran.app.notes[4:] == [-errno.EINVAL] * len(calls)


async def test_parts_of_a_reply_are_read(here: Room) -> None:
    body = GET + noting(
        "(call $buf_read (i32.const 1) (i64.const 1) (i32.const 512) (i32.const 3))",
        "(call $buf_read (i32.const 1) (i64.const 3) (i32.const 515) (i32.const 100))",
        "(call $buf_read (i32.const 1) (i64.const 5) (i32.const 515) (i32.const 100))",
        "(call $send_bytes (i64.const 1) (i32.const 512) (i32.const 5))",
    )
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(body, address=server.address, method="GET /hello"))
    assert ran.app.notes[4:] == [3, 2, 0, 0]
    assert ran.app.contents[1] == b"ellel"[:3] + b"lo"


async def test_ids_are_used_once_and_unknown_ones_are_enoent(here: Room) -> None:
    body = GET + noting(
        "(call $send_rpc (local.get $a) (i64.const 7) @method (i32.const 0) (i32.const 0))",
        "(call $send_msg (i64.const 7) (i32.const 1) (i64.const 0) (i64.const 5))",
        "(call $recv_rpc_reply (local.get $a) (i64.const 8) (i32.const 1024))",
        "(call $recv_rpc_reply (local.get $a) (i64.const 7) (i32.const 1024))",
    )
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(body, address=server.address, method="GET /hello"))
        assert server.requests == ["/hello"]
    assert ran.app.notes[4:] == [-errno.EEXIST, -errno.EEXIST, -errno.ENOENT, 0]


async def test_an_id_with_the_top_bit_is_a_number_for_the_app(here: Room) -> None:
    ran = await here.run(module(noting("(call $send_bytes (i64.const -1) (i32.const 0) (i32.const 1))")))
    assert ran.app.said[0]["id"] == ran.report.messages[0].id == 2**64 - 1


async def test_an_empty_message(here: Room) -> None:
    ran = await here.run(module(noting("(call $send_bytes (i64.const 3) (i32.const 0) (i32.const 0))")))
    assert ran.app.notes == [0]
    assert ran.app.contents[3] == b""


async def test_texts_that_are_too_long_or_not_utf8(here: Room) -> None:
    body = noting(
        "(call $connect (i32.const 0) (i32.const 5000))",
        "(call $connect @rubbish)",
        "(call $connect @odd)",
        "(call $get_conn (i64.const 1) (i32.const 0) (i32.const 5000))",
    )
    ran = await here.run(module(body, rubbish=b"\xff\xfe", odd="gopher://x"))
    assert ran.app.notes == [-errno.EMSGSIZE, -errno.EINVAL, -errno.EINVAL, -errno.EMSGSIZE]


async def test_a_reply_is_forwarded_as_a_request(here: Room) -> None:
    body = GET + noting(
        "(call $send_rpc_buf (local.get $a) (i64.const 8) @forward (i32.const 1) (i64.const 1) (i64.const 3))",
        "(call $recv_rpc_reply (local.get $a) (i64.const 8) (i32.const 1024))",
        "(call $send_msg (i64.const 8) (i32.load (i32.const 1024)) (i64.const 0) (i64.const 2))",
    )
    async with http_server(hello=b"hello", forward=b"ok") as server:
        wasm = module(body, address=server.address, method="GET /hello", forward="GET /forward")
        ran = await here.run(wasm)
    assert ran.app.notes[4:] == [0, 0, 0]
    assert ran.app.contents[8] == b"ok"


async def test_a_dead_endpoint_is_an_errno_and_the_app_is_reported(here: Room) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ran = await here.run(module(GET, address=address, method="GET /hello"))
    assert ran.app.notes[:2] == [0, -errno.ECONNREFUSED]
    (failed,) = (said for said in ran.app.said if said["op"] == "failed")  # before or after what the script says of it
    assert failed["id"] == 7
    assert failed["rpc"] == ["http.GET /hello", address] and "refused" in failed["reason"]
    assert (ran.report.outcome, ran.report.rpcs[0].status) == ("exit", -errno.ECONNREFUSED)


async def test_a_connection_that_breaks_off_is_an_errno(here: Room) -> None:
    async def break_off() -> bytes:
        raise ConnectionResetError

    async with http_server(hello=break_off) as server:
        ran = await here.run(module(GET, address=server.address, method="GET /hello"))
    assert ran.app.notes[1] < 0
    assert "failed" in ran.app.ops


async def test_a_reply_that_the_region_has_no_room_for(here: Room) -> None:
    async with http_server(large=b"x" * 300_000) as server:
        wasm = module(GET, address=server.address, method="GET /large")
        ran = await here.run(wasm, budget=Budget(region_bytes=200_000))
    assert ran.app.notes[:2] == [0, -errno.ENOSPC]
    assert ran.report.outcome == "exit" and ran.report.region_bytes <= 200_704


async def test_a_message_that_the_region_has_no_room_for(here: Room) -> None:
    body = noting(
        "(call $send_bytes (i64.const 1) (i32.const 0) (i32.const 8192))",
        "(call $send_bytes (i64.const 2) (i32.const 0) (i32.const 4096))",
    )
    assert (await here.run(module(body), budget=Budget(region_bytes=8192))).app.notes == []
    ran = await here.run(module(body), budget=Budget(region_bytes=12_288))
    assert ran.app.contents.keys() == {1, 2} and ran.app.notes == []


async def test_endpoints_that_are_not_allowed_are_eacces(here: Room) -> None:
    async with http_server(hello=b"hello") as server:
        wasm = module(noting("(call $connect @address)", "(call $connect @local)"), address=server.address, local="http://169.254.169.254")  # fmt: skip  # noqa: E501
        assert (await here.run(wasm)).app.notes == [0, -errno.EACCES]
        ran = await here.run(wasm, budget=Budget(endpoints=[]))
        assert ran.app.notes == [-errno.EACCES, -errno.EACCES]
        assert ran.report.log.count("engine: connect ") == 2 and "denied" in ran.report.log
        assert server.requests == []


async def test_budgets_for_rpcs_messages_and_connections(here: Room) -> None:
    send = "(call $send_rpc (local.get $a) (i64.const {0}) @method (i32.const 0) (i32.const 0))"
    say = "(call $send_bytes (i64.const {0}) (i32.const 0) (i32.const 1))"
    body = "(local.set $a (call $connect @address))" + noting(
        send.format(1), send.format(2), send.format(3), *["(call $connect @address)"] * 2, say.format(1), say.format(2)
    )
    budget = Budget(rpcs=2, messages=2, connections=2)
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(body, address=server.address, method="GET /hello"), budget=budget)
    # The notes themselves are the third message: they are found in the report's place of them, nowhere.
    assert ran.app.contents.keys() == {1, 2}
    assert (len(ran.report.rpcs), len(ran.report.messages)) == (2, 2)
    budget = Budget(rpcs=2, messages=3, connections=2)
    async with http_server(hello=b"hello") as server:
        ran = await here.run(module(body, address=server.address, method="GET /hello"), budget=budget)
    assert ran.app.notes == [0, 0, -errno.EDQUOT, 1, -errno.EMFILE, 0, 0]


async def test_request_bodies_are_bounded(here: Room) -> None:
    send = "(call $send_rpc (local.get $a) (i64.const {0}) @method (i32.const 0) (i32.const {1}))"
    body = "(local.set $a (call $connect @address))" + noting(
        send.format(1, 8 * 1024 * 1024 + 1), send.format(2, 8 * 1024 * 1024), send.format(3, 1)
    )
    # Without an answer: the second call's bytes are under way until the run's end, however fast the server takes them.
    async with http_server(nothing=asyncio.Event().wait) as server:
        ran = await here.run(module(body, memory="129", address=server.address, method="POST /nothing"))
    assert ran.app.notes == [-errno.EMSGSIZE, 0, -errno.ENOBUFS]
