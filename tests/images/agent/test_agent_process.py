"""The process of the agent, by itself."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from sockd.images.agent import agent_wire as wire
from sockd.images.agent.agent_process import AgentProcess
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store_settings import StoreSettings
from sockd.images.profiles import startup_data
from sockd.images.profiles.startup_data import StartupDataWriter, blocks_of
from sockd.linux.memory_file import memory_file


class Nothing:
    """A source without chunks."""

    def read(self, name: bytes, offset: int, size: int) -> None:
        return None

    def has(self, name: bytes) -> bool:
        return False

    def has_room(self) -> bool:
        return True

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        raise AssertionError("there are no nodes")

    def fetch(self, root: str, name: bytes) -> bytes:
        raise AssertionError("nobody wants a chunk")

    def counters(self) -> dict[str, float]:
        return {}


@contextlib.contextmanager
def memory(name: str, data: bytes) -> Iterator[int]:
    file = memory_file(name, data)
    try:
        yield file
    finally:
        os.close(file)


def test_a_process_whose_daemon_ended_before_it_began_ends_quietly() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.close()
        command = [sys.executable, "-m", "sockd.images.agent", str(theirs.fileno())]
        ended = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_process_whose_daemon_ends_without_reading_an_answer_ends_quietly(is_answered: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    setup = wire.Setup(
        source=SourceSettings(store=StoreSettings(url="/nowhere"), l1_bytes=0),
        has_directory=False,
        prefetches=1,
        stall_s=1.0,
        fill_bytes_s=0,
    )
    agent = AgentProcess(theirs, setup, Nothing(), [])
    running = threading.Thread(target=agent.run)
    with theirs:
        wire.send(ours, wire.Ping(1))
        if is_answered:
            running.start()
            assert select.select([ours], [], [], 30)[0]
        ours.close()
        if not is_answered:
            running.start()
        running.join(30)
        assert not running.is_alive()


def test_what_is_filled_in_counts_for_the_opening_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is opened again while its startup data was decrypted has other data, of which less is there."""
    monkeypatch.setattr(startup_data, "WAIT_S", 0.01)
    plain = random.Random(1).randbytes(CHUNK_BYTES)
    writer = StartupDataWriter(1 << 20)
    writer.add(0, blocks_of(0, CHUNK_BYTES), plain)
    data = writer.data()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = SourceSettings(store=StoreSettings(url="/nowhere"), l1_bytes=0)
    setup = wire.Setup(source=source, has_directory=False, prefetches=1, stall_s=1.0, fill_bytes_s=0)
    agent = AgentProcess(theirs, setup, Nothing(), [])
    table = wire.chunk_table(Manifest("image", CHUNK_BYTES, "r1", (None,)))
    running = threading.Thread(target=agent.run)
    running.start()
    with ours, memory("table", table) as table_file, memory("data", data) as data_file:

        def reported(message: wire.ToAgent, *descriptors: int) -> None:
            wire.send(ours, message, descriptors)
            assert wire.decode_to_daemon(ours.recv(1 << 16)) == wire.Done(message.number)  # type: ignore[union-attr]

        def read() -> bytes | None:
            image = agent._server.image("image")
            assert image is not None and image.startup is not None
            return image.startup.read(0, CHUNK_BYTES - 4096, 4096)

        reported(wire.Open(1, "image", 2, "r1", (), True, 4096), table_file, data_file)
        assert read() is None
        reported(wire.Filled(2, "image", 3, len(data)))
        assert read() is None
        reported(wire.Filled(3, "image", 2, len(data)))
        assert read() == plain[-4096:]
        reported(wire.Started(4, "image", 2))
    running.join()
    theirs.close()
