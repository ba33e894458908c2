"""The link alone: what comes is kept until it is asked for, waits end, and memory outlives it."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sockd_storage_lib.sockd_initscript import NoMessage, wire
from sockd_storage_lib.sockd_initscript.app_link import Link
from tests.storage_lib.engine_end import EngineEnd

Ends = tuple[EngineEnd, socket.socket]


class InThread:
    """A call in a thread of its own; `result` waits for it, and raises what it raised."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._outcome: list[Any] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(function, arguments))
        self._thread.start()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._outcome.append(function(*arguments))
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def test_messages_are_found_by_number_and_as_often_as_asked(engine: EngineEnd, link: Link) -> None:
    engine.message(1, b"one", "s3.GetObject", "b", "k")
    engine.message(2, b"two" * 100_000, own=True)
    engine.message(3, b"")
    engine.message(1, b"not this")
    for _ in range(2):
        assert bytes(link.recv_msg(3).view) == b""
        assert bytes(link.recv_msg(2).view) == b"two" * 100_000
        message = link.recv_msg(1)
        assert (bytes(message.view), message.rpc, message.status) == (b"one", ["s3.GetObject", "b", "k"], 200)


def test_a_file_is_given_once_and_to_write_to(engine: EngineEnd, link: Link) -> None:
    waiting = InThread(link.recv_file, 1, 10)
    engine.file(1, b"content")
    engine.file(2, b"not taken: closed with the link")
    fd = waiting.result()
    assert os.pread(fd, 100, 0) == b"content" and os.pwrite(fd, b"x" * 100, 0) == 100
    os.close(fd)
    with pytest.raises(NoMessage):
        link.recv_file(1, 0.01)


def test_a_wait_ends_with_the_message(engine: EngineEnd, link: Link) -> None:
    waiting = [InThread(link.recv_msg, number, 10) for number in range(20)]
    for number in reversed(range(20)):
        engine.message(number, b"%d" % number)
    assert [bytes(thread.result().view) for thread in waiting] == [b"%d" % number for number in range(20)]


def test_waits_end_with_the_script(engine: EngineEnd, link: Link) -> None:
    engine.message(0, b"sent before")
    waiting = [InThread(link.recv_msg, number) for number in (1, 2, 3)]
    engine.end("trap", 7)
    for thread in waiting:
        with pytest.raises(NoMessage, match="the initscript has ended: trap 7"):
            thread.result()
    assert bytes(link.recv_msg(0).view) == b"sent before"


def test_waits_end_when_the_engine_dies(engine: EngineEnd, link: Link) -> None:
    waiting = [InThread(link.recv_msg, number) for number in (1, 2)]
    engine.close()
    for thread in waiting:
        with pytest.raises(NoMessage, match="the engine is gone"):
            thread.result()


def test_what_an_engine_sent_that_has_heard_nothing_is_there(engine: EngineEnd, link: Link) -> None:
    link.report_read(["s3.GetObject", "b", "k"], "network", 1, 2)
    for number in range(3):
        engine.message(number, b"%d" % number)
    engine.close()  # with our report unread: to us that is a reset
    assert [bytes(link.recv_msg(number, 10).view) for number in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(NoMessage, match="the engine is gone"):
        link.recv_msg(3)


def test_waits_end_when_the_link_is_closed(link: Link) -> None:
    waiting = [InThread(link.recv_msg, number) for number in (1, 2)]
    link.close()
    for thread in waiting:
        with pytest.raises(NoMessage, match="the link"):
            thread.result()


def test_waits_end_in_time(link: Link) -> None:
    waiting = [InThread(link.recv_msg, number, 0.05) for number in (1, 2)]
    for thread in waiting:
        with pytest.raises(NoMessage, match="nothing came within"):
            thread.result()


def test_a_failed_rpc_is_reported(engine: EngineEnd, link: Link) -> None:
    engine.failed(4, "s3.GetObject", "b", "k")
    with pytest.raises(NoMessage, match="refused"):
        link.recv_msg(4)


def test_memory_outlives_the_link_and_the_engine(engine: EngineEnd, link: Link) -> None:
    engine.message(1, b"kept" * 100_000, own=True)
    engine.message(2, b"small")
    large, small = link.recv_msg(1).view, link.recv_msg(2).view
    link.close()
    engine.close()
    assert (bytes(large[-4:]), bytes(small)) == (b"kept", b"small")
    assert large.readonly and small.readonly


@pytest.mark.parametrize("own", [True, False])
def test_the_region_cannot_be_written_to(engine: EngineEnd, link: Link, own: bool) -> None:
    engine.message(1, b"x" * 300_000, own=own)
    link._wait(lambda: link._inbox.message(1), 10)
    fd = link._inbox.segments[0]._fd
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 300_000, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.pwrite(fd, b"y", 0)
    with pytest.raises(OSError):
        os.ftruncate(fd, 0)
    with pytest.raises(TypeError):
        link.recv_msg(1).view[0] = 1


def test_a_link_that_another_process_ends_forgets_what_came(engine: EngineEnd, ends: Ends) -> None:
    """A program of the function's has the link, and its sandbox ends it behind the first answer."""
    sandbox = ends[1].dup()
    link = Link(ends[1].detach(), is_inherited=True)
    engine.message(1, b"of the first request")
    kept = link.recv_msg(1).view
    assert bytes(link.recv_msg(1).view) == bytes(kept)
    with sandbox:
        sandbox.shutdown(socket.SHUT_RDWR)
    with pytest.raises(NoMessage, match="the engine is gone"):
        link.recv_msg(1)
    assert bytes(kept) == b"of the first request"
    link.close()


@pytest.mark.root
def test_nor_be_opened_again_for_writing_by_another_user(engine: EngineEnd, link: Link) -> None:
    engine.message(1, b"x" * 300_000, own=True)
    link._wait(lambda: link._inbox.message(1), 10)
    os.seteuid(65534)
    try:
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
            with pytest.raises(PermissionError):
                os.open(f"/proc/self/fd/{link._inbox.segments[0]._fd}", flags)
    finally:
        os.seteuid(0)


def test_one_descriptor_a_segment_and_none_after_the_link(engine: EngineEnd, link: Link) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        engine.message(number, b"x" * 300_000, own=True)
    views = [link.recv_msg(number).view for number in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    link.close()
    del views
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize(
    ("message", "fds"),
    [
        ({"op": "message", "id": 1}, 0),
        ({"op": "message", "id": 1, "status": 200, "segment": 0, "offset": 0, "length": 5}, 0),
        ({"op": "message", "id": 1, "status": 200, "segment": 0, "offset": 0, "length": 5, "size": 4}, 1),
        ({"op": "message", "id": 1, "status": 200, "segment": 0, "offset": -1, "length": 5, "size": 9}, 1),
        ({"op": "message", "id": 1, "status": 200, "segment": 0, "offset": 9, "length": -5, "size": 9}, 1),
        ({"op": "connection", "id": 1, "addr": "tcp://h:1", "kind": "tcp"}, 0),
        ({"op": "connection", "id": 1, "addr": "tcp://h:1"}, 1),
        ({"op": "read", "rpc": [], "served": "region", "start_ns": 1, "end_ns": 1}, 0),
        ({"op": "sent", "id": 1, "rpc": ["x"]}, 1),
        ({"op": "sent", "id": 1, "rpc": ["x"]}, 3),
    ],
)
def test_a_link_that_breaks_its_rules_has_ended(
    engine: EngineEnd, link: Link, message: dict[str, Any], fds: int
) -> None:
    engine.push(message, *[os.open("/dev/null", os.O_RDONLY) for _ in range(fds)])
    with pytest.raises(NoMessage, match="broke the link"):
        link.recv_msg(1, 10)


def test_messages_to_the_script(engine: EngineEnd, link: Link) -> None:
    link.send_msg(5, memoryview(b"payload\n{"))
    assert engine.receive() == ({"op": "message", "id": 5}, b"payload\n{", [])
    with pytest.raises(wire.WireError):
        link.send_msg(6, bytes(wire.MAX_PAYLOAD + 1))
    engine.close()
    with pytest.raises(OSError):
        link.send_msg(7, b"")


def test_a_connection_in_both_directions(engine: EngineEnd, link: Link) -> None:
    here, there = socket.socketpair()
    with here:
        here.settimeout(10)
        engine.push({"op": "connection", "id": 9, "addr": "tcp://h:1", "kind": "tcp"}, there.detach())
        connection = link.get_conn(9, 10)
        assert (connection.addr, connection.kind, connection.tls_server_name) == ("tcp://h:1", "tcp", None)
        connection.sock.send(b"from the app")
        assert here.recv(100) == b"from the app"
        link.transfer_conn(10, "tcp://h:1", connection.sock)
        assert connection.sock.fileno() == -1
        received = engine.receive()
        assert received is not None and received[0] == {"op": "connection", "id": 10, "addr": "tcp://h:1"}
        with socket.socket(fileno=received[2][0]) as back:
            back.send(b"from the script")
        assert here.recv(100) == b"from the script"
    with pytest.raises(NoMessage):
        link.get_conn(9, 0)


def test_connections_that_no_one_took_are_closed_with_the_link(engine: EngineEnd, link: Link) -> None:
    here, there = socket.socketpair()
    with here:
        here.settimeout(10)
        engine.push({"op": "connection", "id": 9, "addr": "tcp://h:1", "kind": "tcp"}, there.detach())
        with pytest.raises(NoMessage):
            link.recv_msg(1, 0)
        link.close()
        assert here.recv(1) == b""


def test_reports_never_wait(engine: EngineEnd, link: Link) -> None:
    for number in range(20_000):
        link.report_read(["s3.GetObject", "b", "k"], "region", number, number)
    engine.close()
    link.report_read(["s3.GetObject", "b", "k"], "region", 1, 1)


def test_two_links_are_two(tmp_path: Path) -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    engines = [EngineEnd(ours) for ours, _ in pairs]
    links = [Link(theirs.detach()) for _, theirs in pairs]
    for number, engine in enumerate(engines):
        engine.message(0, b"%d" % number * 300_000, own=True)
    assert [bytes(link.recv_msg(0, 10).view[:1]) for link in links] == [b"0", b"1"]
    for link, engine in zip(links, engines, strict=True):
        link.close()
        engine.close()
