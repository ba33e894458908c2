"""One agent process from its start to its end, as the daemon sees it: questions and answers over the control socket.

Owns the process and the daemon's end of the socket. Callers that wait for an answer when the process ends get `AgentEnded`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sockd.base.errors import SockdError
from sockd.images.agent import agent_wire as wire
from sockd.linux.confined.confined_process import ConfinedProcess, Jail
from sockd.linux.confined.software import Places, software

MODULE = "sockd.images.agent"
TMP_BYTES, PIDS, OPEN_FILES = 1 << 20, 128, 1024
LIBRARIES = ("blake3", "cryptography", "msgspec", "uvloop")
"""What the agent and a cache node import."""
MOST_AT_ONCE = 64
"""Messages that are read before the loop does something else."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is held to."""

    uid: int
    source: wire.SourceSettings
    on_demand: bool = True
    """False: images are written whole, as where there is no FUSE."""
    may_resend: bool = True
    """False: as where the kernel does not send the reads of an ended agent to the next one."""
    memory_bytes: int = 512 << 20
    """The memory limit of the agent's cgroup, in bytes; the page cache of the L1 file counts."""
    threads: int = 2
    """That answer reads."""
    prefetches: int = 16
    """At a time."""
    stall_s: float = 2.5
    """A read fails when it has waited for so long and no chunk has arrived meanwhile."""
    answer_s: float = 5.0
    """A process that does not answer a question within so long is ended."""
    standby: bool = True
    """Whether another process waits to take over."""
    fill_bytes_s: int = 0
    """The rate of the background fill, in bytes per second; 0 for none."""
    startup_bytes: int = 512 << 20
    """The most bytes of startup data of all images that start at a time, in the daemon's memory."""


class AgentEnded(Exception):
    """The process has ended; the next one may be asked again."""


class AgentLink:
    """`start`, `ask`, `aclose`."""

    def __init__(
        self,
        ours: socket.socket,
        process: ConfinedProcess,
        settings: AgentSettings,
        on_trouble: Callable[[wire.Trouble], None],
    ) -> None:
        self._ours = ours
        self._process = process
        self._settings = settings
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[wire.ToDaemon]] = {}
        self._number = 0
        self.is_ended = False
        self.started_s = time.monotonic()
        self._why_ended = ""
        """If the daemon has ended it."""
        self.left = asyncio.Event()
        """Set by the owner when this process is no longer the one that is asked."""
        self._loop.add_reader(ours, self._received)

    @classmethod
    async def start(
        cls,
        jail: Jail,
        settings: AgentSettings,
        on_trouble: Callable[[wire.Trouble], None],
    ) -> AgentLink:
        """Start a process, which may not be confined yet, and waits for `set_up`. Raises: OSError."""
        process, ours = await ConfinedProcess.start_connected(
            jail,
            MODULE,
            socket.SOCK_SEQPACKET,
            uid=settings.uid,
            memory_bytes=settings.memory_bytes,
            tmp_bytes=TMP_BYTES,
            pids=PIDS,
            network="host",
            limits={"RLIMIT_NOFILE": OPEN_FILES},
        )
        return cls(ours, process, settings, on_trouble)

    def set_up(self, source: wire.SourceSettings, slab: int, devices: Sequence[int]) -> None:
        """Have the process open the L1 cache and the store. Once, before `ask`. Raises: OSError; AgentEnded."""
        if self.is_ended:
            raise AgentEnded
        with ExitStack() as stack:
            store, directory = source.store, []
            if store.is_directory:
                directory.append(os.open(store.url, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                stack.callback(os.close, directory[0])
            setup = wire.Setup(
                source=source,
                has_directory=bool(directory),
                prefetches=self._settings.prefetches,
                stall_s=self._settings.stall_s,
                fill_bytes_s=self._settings.fill_bytes_s,
            )
            wire.send(self._ours, setup, (slab, *directory, *devices))

    @property
    def pid(self) -> int:
        """The pid of the launcher, which ends with the agent."""
        return self._process.launcher.pid

    def memory_bytes(self) -> int:
        """What its cgroup is charged for."""
        return self._process.cgroup.memory_bytes()

    async def ended(self) -> str:
        """Wait until the process has ended; how it did, in words."""
        how = await self._process.wait()
        return self._why_ended or how

    async def ask(
        self,
        question: Callable[[int], wire.ToAgent],
        descriptors: Sequence[int] = (),
        *,
        within_s: float | None = None,
    ) -> wire.Answer:
        """The answer.

        Args: question: makes the message of this number; within_s: a process that does not answer within so long is ended.
        Raises: AgentEnded; SockdError, the agent's."""
        if self.is_ended:
            raise AgentEnded
        self._number += 1
        number = self._number
        answer: asyncio.Future[wire.ToDaemon] = self._loop.create_future()
        self._answers[number] = answer
        try:
            wire.send(self._ours, question(number), descriptors)
            await asyncio.wait([answer], timeout=within_s)
            if not answer.done():
                self._received()  # perhaps the loop was late, and not the process
            if not answer.done():
                self._end_process(f"it has not answered for {within_s:g} s")
            found = answer.result()
        except OSError as error:  # it has ended, or has not read for so long that the socket is full
            raise AgentEnded from error
        finally:
            self._answers.pop(number, None)
        assert not isinstance(found, wire.Trouble)
        if isinstance(found, wire.Done) and found.error_type:
            raise wire.error_of(found.error_type, found.message)
        return found

    def look(self) -> None:
        """Know what the process has sent, and whether it has ended, up to now."""
        self._received()

    async def aclose(self) -> None:
        """End the process. Once."""
        self._end()
        await self._process.close()

    def _received(self) -> None:
        """Handle every message that has come: the reason of a failed read is known before the reader goes on."""
        for _ in range(MOST_AT_ONCE):
            if self.is_ended or not self._receive():
                return

    def _receive(self) -> bool:
        """One message. False: there is none."""
        try:
            with ExitStack() as stack:
                data, _ = wire.receive_with_descriptors(self._ours, stack)
            if not data:
                self._end()
                return False
            message = wire.decode_to_daemon(data)
        except BlockingIOError:
            return False
        except OSError:  # it has ended with messages unread
            self._end()
            return False
        except wire.BadAgentMessage as error:
            self._end_process(f"it sent what is no message: {error}")
            return False
        if isinstance(message, wire.Trouble):
            self._on_trouble(message)
        elif (answer := self._answers.get(message.number)) is not None and not answer.done():
            answer.set_result(message)
        return True

    def _end_process(self, why: str) -> None:
        _log.error("the agent of images is ended: %s", why)
        self._why_ended = why
        self._end()
        if self._process.launcher.returncode is None:
            self._process.launcher.kill()  # the agent follows, also one that is stopped

    def _end(self) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        self._loop.remove_reader(self._ours)
        self._ours.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AgentEnded())


def places() -> Places:
    """What the process imports, and where it is in its tree."""
    return software(("sockd",), LIBRARIES)


def trouble_error(trouble: wire.Trouble) -> SockdError:
    """What reads of an image failed with."""
    return wire.error_of(trouble.error_type, trouble.message)
