"""Service: one function with `kind = "service"`, from its first connection to its removal.

    STOPPED ──connection, or min = 1──► STARTING ──ready──► RUNNING ──unused for idle_s──► STOPPED
                                          │   ▲                │
                                 it failed▼   │delay is over   │its program ended, or refuses connections
                                         WAITING ◄─────────────┘

With min = 0 a service that has failed waits for a connection, too. After a deploy the new version starts while the old one
serves. When it is ready it gets the connections, and the old one ends with its last connection, or after `drain_s`. One that does
not start takes nothing from the old one; it is tried again.

Owns the instances and the task of the start under way. Only this task makes an instance the one that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from sockd.base.errors import BadFunctionConfig, Draining, NoCapacity, ServiceNotReady, SockdError, TooManyRequests
from sockd.functions.code.service_config import ServiceConfig
from sockd.functions.services.backoff import Backoff
from sockd.functions.services.instance import Instance
from sockd.functions.services.parts import ServiceParts
from sockd.functions.services.program_connection import ProgramConnection
from sockd.functions.services.published_port import PublishedPort
from sockd.functions.services.service_log import NoteLog
from sockd.functions.serving.function import Function

EXIT_GRACE_S = 0.5
"""From a connection that is refused to the end of the program, if that is why."""

_log = logging.getLogger(__name__)


class State(enum.Enum):
    """The state of a service."""

    STOPPED = "stopped"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


class Service:
    """`adopt` at the start and after each deploy; `connected` for each connection; `aclose`, or `close`, ends it."""

    def __init__(self, function: Function, note: NoteLog, parts: ServiceParts) -> None:
        """Args: note: takes what its programs print."""
        self.name = function.version.record.name
        self._function = function
        self._note = note
        self._parts = parts
        self._port: PublishedPort | None = None
        self.port_reason = ""
        """Why its port of the host is not open; empty: it is, or there is none."""
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._serving: Instance | None = None
        self._instances: set[Instance] = set()
        """All that run: the one that serves, and those that end."""
        self._start: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.starts = 0
        """Programs that were ready."""
        self.failures = 0
        """Starts that failed, and programs that ended by themselves."""
        self.reason = ""
        """Why the last of them did; empty: none has."""

    @property
    def state(self) -> State:
        """The state now."""
        if self._is_closed:
            return State.CLOSED
        if self._serving is not None:
            return State.RUNNING
        if self._backoff.left_s(self._loop.time()):
            return State.WAITING
        return State.STARTING if self._start is not None else State.STOPPED

    def is_of(self, function: Function) -> bool:
        """Whether it is this function's, and not that of a removed one of the same name."""
        return self._function is function

    def adopt(self) -> None:
        """Follow the function's version, which is another after a deploy or a change of settings."""
        self._publish()
        if self._is_disabled:
            self._cancel()
            self._dismiss()
        elif self._serving is None or self._serving.version is not self._function.version:
            self._cancel()
            self._backoff.forget()
            if self._is_wanted:
                self._begin()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[Instance, ProgramConnection]]:
        """A connection to the program, which is started for it if it does not run; closed at the end of the block.

        Raises: ServiceNotReady, TooManyRequests, NoCapacity."""
        async with contextlib.AsyncExitStack() as stack:
            instance = await self._ready()
            try:
                connection = await stack.enter_async_context(instance.connected())
            except ServiceNotReady:
                if not instance.has_refused:
                    raise
                await self._replace(instance)
                instance = await self._ready()
                connection = await stack.enter_async_context(instance.connected())
            yield instance, connection

    def close(self) -> None:
        """End it at once: its function is gone."""
        self._is_closed = True
        self._publish()
        self._cancel()
        for instance in self._instances:
            instance.kill()

    async def aclose(self) -> None:
        """End it, and let its programs end by themselves."""
        self._is_closed = True
        port = self._port
        self._publish()
        if port is not None:
            await port.closed()
        start = self._cancel()
        if start is not None:
            await asyncio.wait((start,))
        await asyncio.gather(*(instance.stop() for instance in list(self._instances)))
        if self._endings:
            await asyncio.wait(self._endings)

    def row(self) -> dict[str, Any]:
        """What `sockd ps` shows of it."""
        now_s, serving = self._loop.time(), self._serving
        return {
            "name": self.name,
            "state": self.state.value,
            "version": serving.version.number if serving is not None else self._function.version.number,
            "port": serving.port if serving is not None else self.settings.port,
            "published": self._port.number if self._port is not None else 0,
            "port_reason": self.port_reason,
            "sandbox": serving.sandbox.id if serving is not None else "",
            "up_s": serving.ran_s if serving is not None else 0.0,
            "start_s": serving.start_s if serving is not None else 0.0,
            "connections": sum(instance.connections for instance in self._instances),
            "draining": sum(instance is not serving for instance in self._instances),
            "memory_bytes": sum(instance.memory_bytes for instance in self._instances),
            "starts": self.starts,
            "failures": self.failures,
            "reason": self.reason,
            "retry_in_s": self._backoff.left_s(now_s),
        }

    @property
    def settings(self) -> ServiceConfig:
        """The settings of the function's version, which may not run yet."""
        settings = self._function.version.config.service
        assert settings is not None
        return settings

    @property
    def _is_disabled(self) -> bool:
        return not self._function.version.config.concurrency

    @property
    def _is_wanted(self) -> bool:
        """Whether it is to run, or the version that runs is to be replaced, without a connection that waits."""
        return not self._is_closed and not self._is_disabled and bool(self.settings.min or self._serving is not None)

    async def _ready(self) -> Instance:
        """The instance that takes connections, started now if there is none."""
        while self._serving is None:
            self._check_open()
            left_s = self._backoff.left_s(self._loop.time())
            if left_s > self._function.version.config.timeout_s:
                words = f"the service {self.name} is started again in {left_s:.1f} s: {self.reason}"
                raise ServiceNotReady(words, retry_after_s=math.ceil(left_s))
            start = self._start or self._begin()
            await asyncio.wait((start,))
            if not start.cancelled() and (error := start.exception()) is not None:
                raise _for_client(self.name, error)
        return self._serving

    def _publish(self) -> None:
        """Have the port of the host that the settings say, or none."""
        number = 0 if self._is_closed or self._is_disabled else self.settings.publish
        if self._port is not None and (self._port.number, self._port.addresses) != (number, self.settings.publish_on):
            self._port.close()
            self._port = None
        self.port_reason = ""
        if number and self._port is None:
            try:
                self._port = PublishedPort.open(self.settings, self._parts, self.connected)
            except BadFunctionConfig as error:
                self.port_reason = error.message
            except OSError as error:
                self.port_reason = f"port {number} of the host: {os.strerror(error.errno or 0)}"
                _log.warning("the service %s is not published: %s", self.name, self.port_reason)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Draining(f"the service {self.name} is ending")
        if self._is_disabled:
            raise TooManyRequests("the service is disabled: its concurrency is 0")

    def _begin(self) -> asyncio.Task[None]:
        """Start the function's version, after the delay of the last failure."""
        self._start = self._loop.create_task(self._start_instance())
        self._start.add_done_callback(self._start_ended)
        return self._start

    async def _start_instance(self) -> None:
        await asyncio.sleep(self._backoff.left_s(self._loop.time()))
        with contextlib.ExitStack() as held:
            held.enter_context(self._parts.holding(self._function.version.record.digest))
            instance = await Instance.start(self._function, self._note, self._await_use)
            instance.ended.add_done_callback(partial(_let_go, held.pop_all()))
        # No step waits from here on: an instance that is ready serves.
        instance.ended.add_done_callback(partial(self._instance_ended, instance))
        self._instances.add(instance)
        self._dismiss()
        self._serving = instance
        self.starts += 1
        self._await_use(instance)

    def _start_ended(self, start: asyncio.Task[None]) -> None:
        if self._start is start:
            self._start = None
        if start.cancelled() or (error := start.exception()) is None:
            return
        if not isinstance(error, SockdError | OSError):
            self._loop.call_exception_handler({"message": f"the start of the service {self.name}", "exception": error})
        self._note_failure(_words(error))

    def _instance_ended(self, instance: Instance, ended: asyncio.Task[None]) -> None:
        self._instances.discard(instance)
        if instance is self._serving:
            self._serving = None
            if not instance.is_stopping:
                self._note_failure(_words(instance.error or ended.exception()), instance.ran_s)

    async def _replace(self, instance: Instance) -> None:
        """Give up an instance whose port has refused a connection: its program has ended, or does not listen any more."""
        await asyncio.wait((instance.ended,), timeout=EXIT_GRACE_S)
        if instance is self._serving:
            self._dismiss()
            self._note_failure(f"it refuses connections to port {instance.port}")

    def _note_failure(self, reason: str, ran_s: float = 0.0) -> None:
        """Keep the reason, and start again if that is wanted."""
        self.failures += 1
        self.reason = reason
        self._backoff.note_failure(self._loop.time(), ran_s)
        left_s = self._backoff.left_s(self._loop.time())
        _log.warning("the service %s failed, and may start again in %.1f s: %s", self.name, left_s, reason)
        if self._is_wanted and self._start is None:
            self._begin()

    def _cancel(self) -> asyncio.Task[None] | None:
        """Cancel the start under way, which is returned, and the timer of idleness."""
        start, self._start = self._start, None
        if start is not None:
            start.cancel()
        if self._idle is not None:
            self._idle.cancel()
        return start

    def _await_use(self, instance: Instance) -> None:
        """Stop an instance that has no connection, unless one comes in time."""
        if instance is self._serving and not instance.connections and not self.settings.min:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self._loop.call_later(self.settings.idle_s, self._stop_unused, instance)

    def _stop_unused(self, instance: Instance) -> None:
        if instance is self._serving and not instance.connections:
            self._dismiss()

    def _dismiss(self) -> None:
        """Have the instance that serves take no more connections, and end."""
        instance, self._serving = self._serving, None
        if instance is not None:
            self._retire(instance)

    def _retire(self, instance: Instance) -> None:
        ending = self._loop.create_task(_end(instance))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)


def _let_go(held: contextlib.ExitStack, ended: asyncio.Task[None]) -> None:
    held.close()


async def _end(instance: Instance) -> None:
    """Let the connections of an instance end, for a time, and then the instance."""
    await instance.drain(instance.settings.drain_s)
    await instance.stop()


def _words(error: BaseException | None) -> str:
    return error.message if isinstance(error, SockdError) else str(error)


def _for_client(name: str, error: BaseException) -> BaseException:
    """The error of a start, for a client that waited for it."""
    if isinstance(error, NoCapacity):
        return error.again()
    if not isinstance(error, SockdError | OSError):
        return error
    return ServiceNotReady(f"the service {name} does not start: {_words(error)}")
