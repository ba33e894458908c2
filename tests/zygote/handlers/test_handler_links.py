"""The app link of a function, which comes beside INIT: we are the daemon at the other end of the channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sockd_zygote.protocol import FAILED, READY
from tests.zygote.handler_process import ECHO, Server

LINKED = """
import fcntl, os, sys
fd = sys.modules["sockd_zygote.handlers.initscript_link"].offered
closes_on_exec = fcntl.fcntl(fd, fcntl.F_GETFD)
def handler(event):
    os.write(fd, event.encode())
    return closes_on_exec
"""
OFFERED = "sys.modules['sockd_zygote.handlers.initscript_link'].offered"
ASKS = f"import os, sys\ndef handler(event): return [{OFFERED}, os.environ.get('SOCKD_INITSCRIPT_FD')]\n"


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a link: the engine's, and what is passed on."""
    engine, app = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine.settimeout(10)
    with engine, app:
        yield engine, app


def test_a_function_finds_its_link_and_keeps_it_for_one_request(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    engine, app = link
    server.init(LINKED, app.fileno())
    app.close()
    server.expect(READY, 3)
    server.invoke(1, "hello")
    assert server.answer(1) == 1
    assert engine.recv(100) == b"hello"
    assert engine.recv(100) == b""  # closed, though the sandbox lives
    server.invoke(2, "again")
    assert server.answer(2, FAILED)["errorType"] == "OSError"


def test_the_link_is_gone_even_if_the_first_answer_is_an_error(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    engine, app = link
    server.init(f"import sys\ndef handler(event): return {{}}[{OFFERED}]\n", app.fileno())
    app.close()
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1, FAILED)["errorMessage"].strip("'").isdigit()
    assert engine.recv(100) == b""
    server.invoke(2)
    assert server.answer(2, FAILED)["errorMessage"] == "None"


def test_a_handler_has_no_variable_that_its_children_would_inherit(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    server.init(ASKS, link[1].fileno())
    server.invoke(1)
    server.invoke(2)
    server.expect(READY, 3)
    offered, variable = server.answer(1)
    assert isinstance(offered, int) and variable is None
    assert server.answer(2) == [None, None]


def test_without_a_link_nothing_is_offered(server: Server) -> None:
    server.init(ASKS)
    server.invoke(1)
    server.expect(READY, 3)
    assert server.answer(1) == [None, None]


def test_the_library_that_took_the_link_lets_go_of_it(
    server: Server, link: tuple[socket.socket, socket.socket]
) -> None:
    (server.code / "sockd_initscript.py").write_text("def expire(): print('expired')\n")
    server.init("import sockd_initscript\ndef handler(event): print('called')\n", link[1].fileno())
    server.invoke(1)
    server.invoke(2)
    server.expect(READY, 3)
    server.answer(1)
    server.answer(2)
    assert server.end() == (0, b"called\nexpired\ncalled\n")


@pytest.mark.parametrize("oddity", [f"os.close({OFFERED})", "sys.modules['sockd_initscript'] = 5"])
def test_a_function_that_meddles_with_its_link_is_answered_all_the_same(
    server: Server, link: tuple[socket.socket, socket.socket], oddity: str
) -> None:
    server.init(f"import os, sys\n{oddity}\ndef handler(event): return event\n", link[1].fileno())
    server.invoke(1, "one")
    server.invoke(2, "two")
    server.expect(READY, 3)
    assert server.answer(1) == "one"
    assert server.answer(2) == "two"


@pytest.mark.parametrize("count", [2, 3, 9])
def test_more_than_one_descriptor_next_to_init_ends_it(
    server: Server, link: tuple[socket.socket, socket.socket], count: int
) -> None:
    engine, app = link
    server.init(ECHO, *[app.fileno()] * count, mounted=False)
    app.close()
    assert server.receive() is None
    assert server.end()[0] == 1
    assert engine.recv(100) == b""
