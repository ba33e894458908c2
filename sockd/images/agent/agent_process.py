"""The agent's process: what the daemon asks for over the control socket, done. Exec'd unprivileged, with the host's network.

    python -m sockd.images.agent CONTROL_FD

Owns every descriptor that it is given. It ends with the control socket, or by SIGKILL at any moment: all that it knows, the
daemon knows, too, and gives to the next one.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from sockd.base.errors import SockdError, Tampered
from sockd.images.agent import agent_wire as wire
from sockd.images.agent.background_fill import BackgroundFill
from sockd.images.agent.chunk_fetches import ChunkFetches, ChunkSource, Urgency
from sockd.images.agent.image_server import ImageServer
from sockd.images.agent.open_image import Contents, OpenImage
from sockd.images.agent.sources import open_source
from sockd.images.agent.waiting_reads import WaitingReads
from sockd.images.agent.whole_image import write_image
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.profiles.startup_data import BITMAP_BYTES, StartupData

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter from one that has received a read; Python's default is 5 ms."""


class AgentProcess:
    """Everything behind one control socket."""

    def __init__(self, control: socket.socket, setup: wire.Setup, source: ChunkSource, devices: list[int]) -> None:
        self._control = control
        self._devices = devices
        self._source = source
        self._reported_s: dict[str, float] = {}
        self._fetches = ChunkFetches(source, prefetches=setup.prefetches, outage_s=setup.stall_s)
        self._reads = WaitingReads(
            setup.source.store.name, setup.stall_s, lambda: self._fetches.last_arrival_s, self._report
        )
        self._server = ImageServer(source, self._fetches, self._reads, self._report)
        self._fill = (
            BackgroundFill(source, self._fetches, self._server.images, setup.fill_bytes_s)
            if setup.fill_bytes_s
            else None
        )

    def run(self) -> None:
        """Until the daemon closes the socket."""
        while True:
            with ExitStack() as stack:
                data, descriptors = wire.receive_with_descriptors(self._control, stack)
                if not data:
                    return
                message = wire.decode_to_agent(data)
                if isinstance(message, wire.Write):
                    self._write(message, descriptors, stack.pop_all())
                else:
                    self._answer(self._done(message, descriptors))

    def _answer(self, answer: wire.ToDaemon) -> None:
        """Send without an error if the daemon has ended: then the next `receive` finds the end of the socket."""
        with suppress(BrokenPipeError):
            wire.send(self._control, answer)

    def _done(self, message: wire.ToAgent, descriptors: list[int]) -> wire.ToDaemon:
        match message:
            case wire.Open():
                return self._open(message, *descriptors)
            case wire.Filled():
                image = self._opening(message)
                if image is not None and image.startup is not None:
                    image.startup.fill(message.bytes)
            case wire.Started():
                if (image := self._opening(message)) is not None:
                    image.end_startup()
            case wire.Close():
                if (image := self._server.image(message.image)) is not None:
                    image.end_startup()
                self._server.remove(message.image)
            case wire.Serve():
                self._server.serve(self._devices)
            case wire.AskProfile():
                image = self._server.image(message.image)
                order = image.order if image else ()
                return wire.ProfileIs(message.number, order)
            case wire.AskUse():
                return wire.UseIs(message.number, *self._use(message, descriptors[0]))
            case wire.AskCounters():
                return wire.CountersAre(message.number, self._counters())
            case wire.UseNodes():
                self._source.use_nodes(message.nodes)
            case wire.Ping():
                pass
            case _:
                raise wire.BadAgentMessage(f"{type(message).__name__} after the first message")
        return wire.Done(message.number)

    def _open(self, message: wire.Open, table: int, startup: int | None = None) -> wire.Done:
        image = self._server.image(message.image)
        size_bytes, chunks = wire.parse_chunk_table(read_all(table))
        contents = Contents(message.root, chunks)
        if image is None:
            image = OpenImage(message.image, message.nodeid, size_bytes, contents, has_profile=message.has_profile)
            self._server.add(image)
        elif image.size_bytes != size_bytes:
            raise wire.BadAgentMessage("an image has another size than it had")
        image.contents = contents
        answer = wire.Done(message.number)
        if startup is not None and image.startup is not None:
            image.startup.fill(message.filled)  # it is open already, and somebody may wait for this
        elif startup is not None:
            try:
                image.startup = StartupData.open(startup, size_bytes, message.filled)
            except Tampered as error:
                answer = wire.Done(message.number, type(error).__name__, error.message)
        for number in message.first:
            if number < len(chunks) and not (image.startup and image.startup.has(number)):
                self._server.prefetch(image, number, Urgency.PROFILE)
        if self._fill:
            self._fill.look()
        return answer

    def _opening(self, message: wire.Filled | wire.Started) -> OpenImage | None:
        """The image that a message is of, unless it was closed, and perhaps opened again, meanwhile."""
        image = self._server.image(message.image)
        return image if image is not None and image.nodeid == message.nodeid else None

    def _use(self, message: wire.AskUse, file: int) -> tuple[bytes, bool]:
        """Which blocks of a chunk were read, and whether its ciphertext is here and was written to the file."""
        image = self._server.image(message.image)
        if image is None or not (blocks := image.blocks.get(message.chunk, 0)):
            return b"", False
        chunk = image.contents.chunks[message.chunk]
        size = min(CHUNK_BYTES, image.size_bytes - message.chunk * CHUNK_BYTES)
        data = self._source.read(chunk.name, 0, size) if chunk is not None else None
        if data is not None:
            os.pwrite(file, data, 0)
        return blocks.to_bytes(BITMAP_BYTES, "big"), data is not None

    def _write(self, message: wire.Write, descriptors: list[int], stack: ExitStack) -> None:
        """In a thread: it takes as long as the image is large."""

        def work() -> None:
            table, file = descriptors
            with stack:
                size_bytes, chunks = wire.parse_chunk_table(read_all(table))
                answer = wire.Done(message.number)
                try:
                    write_image(size_bytes, Contents(message.root, chunks), file, self._fetches)
                except SockdError as error:
                    answer = wire.Done(message.number, type(error).__name__, error.message)
            self._answer(answer)

        threading.Thread(target=work, name="write", daemon=True).start()

    def _report(self, image: str, error: SockdError) -> None:
        """Not more often than the daemon can use it; dropped when it does not read."""
        now_s = time.monotonic()
        if now_s - self._reported_s.get(image, 0.0) < wire.REPORT_PERIOD_S:
            return
        self._reported_s[image] = now_s
        trouble = wire.Trouble(image, type(error).__name__, error.message)
        try:
            wire.send(self._control, trouble, flags=socket.MSG_DONTWAIT)
        except OSError:
            return

    def _counters(self) -> dict[str, float]:
        found = self._server.counts + self._fetches.counts + self._reads.counts
        starting = sum(image.startup is not None for image in self._server.images())
        return {**self._source.counters(), **found, "waiting_reads": len(self._reads), "starting_images": starting}


def read_all(descriptor: int) -> bytes:
    """The whole file, whatever its position is."""
    size = os.fstat(descriptor).st_size
    data = b""
    while len(data) < size:
        piece = os.pread(descriptor, size - len(data), len(data))
        if not piece:
            raise wire.BadAgentMessage("a file is shorter than it was")
        data += piece
    return data


def main(control_fd: int, source_of: Callable[[wire.Setup, list[int]], ChunkSource] = open_source) -> None:
    """Serve until the control socket ends."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with socket.socket(fileno=control_fd) as control, ExitStack() as stack:
        data, descriptors = wire.receive_with_descriptors(control, stack)
        if not data:
            return  # the daemon ended while this process started
        setup = wire.decode_to_agent(data)
        if not isinstance(setup, wire.Setup):
            raise wire.BadAgentMessage("the first message is not Setup")
        others = 1 + setup.has_directory
        AgentProcess(control, setup, source_of(setup, descriptors[:others]), descriptors[others:]).run()
        os._exit(0)  # threads wait in read(2), and what they would leave ends with the process
