"""The services of a worker: one `Service` for each function that is one.

Owns them. The registry tells of deploys and removals; a service that is to run always is started without a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sockd.base.errors import NotInvoked, NoWebSockets, ServiceAnswerLost
from sockd.base.invoke_request import InvokeRequest, Sink
from sockd.base.telemetry import Invocation, LogRecord
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.registry import Registry
from sockd.functions.services.http_relay import is_repeatable, relay
from sockd.functions.services.parts import ServiceParts
from sockd.functions.services.service import Service
from sockd.functions.services.service_log import NoteLog
from sockd.functions.serving.function import Function
from sockd.functions.serving.live_functions import LiveFunctions
from sockd.isolation.sandbox.stream import Joined


class Services:
    """`load` first, `aclose` last, before the functions."""

    def __init__(self, registry: Registry, live: LiveFunctions, parts: ServiceParts) -> None:
        self._parts = parts
        self._live = live
        self._services: dict[str, Service] = {}
        self._is_closed = False
        self.log_listeners: list[NoteLog] = []
        """Each takes the records of all services."""
        registry.followers.append(self.reconcile)
        live.restoring.listeners.append(self._adopt)

    def load(self) -> None:
        """Begin with the services among the live functions."""
        for version in self._live.all():
            self._adopt(version.record.name)

    def reconcile(self, old: FunctionAggregate, new: FunctionAggregate) -> None:
        """Follow a deploy, a change of settings or the removal of a function."""
        if new.deploys:
            # In the next step: what depends on functions is called before they have the version.
            asyncio.get_running_loop().call_soon(self._adopt, new.name)
        elif (service := self._services.pop(new.name, None)) is not None:
            service.close()

    async def serve(self, function: Function, request: InvokeRequest) -> Invocation:
        """Pass one HTTP request to the program of a service; with a WebSocket, wait until that has ended.

        Raises: NotInvoked: it is no HTTP request; NoWebSockets; MethodNotAllowed; ServiceNotReady, ServiceAnswerLost;
        TooManyRequests; TimedOut; NoCapacity."""
        version = function.version
        if request.as_http is None or request.qualifier or request.fresh:
            raise NotInvoked(request.name)
        version.check_method(request.method, is_app=True)
        http, body = request.as_http()
        joined = Joined()
        sink = request.sink or joined
        if "upgrade" in http and not sink.can_switch:
            raise NoWebSockets
        try:
            begun = await self._relay(function, request, http, body, sink)
        except ServiceAnswerLost as lost:
            if not (lost.is_reset and is_repeatable(http, body)):
                raise
            # The program was about to end, or to close its port: the next one serves.
            begun = await self._relay(function, request, http, body, sink)
        return begun if request.sink is not None else msgspec.structs.replace(begun, body=joined.body())

    async def _relay(
        self, function: Function, request: InvokeRequest, http: dict[str, Any], body: bytes, sink: Sink
    ) -> Invocation:
        """Pass a request to the program, and its answer to a sink. Raises: as `serve`."""
        streamed = request.sink is not None
        async with self._of(function).connected() as (instance, connection):
            request.entered = True
            begun = Invocation(b"", "warm", instance.sandbox.id, instance.version.id, streamed=streamed)
            sink.begun = begun
            await relay(connection, http, body, sink, timeout_s=function.version.config.timeout_s)
        return begun

    async def stop(self, name: str) -> None:
        """End the service of a function that is about to be removed, if it is one."""
        service = self._services.pop(name, None)
        if service is not None:
            await service.aclose()

    async def aclose(self) -> None:
        """End all services."""
        self._is_closed = True
        services, self._services = self._services, {}
        await asyncio.gather(*(service.aclose() for service in services.values()))

    def rows(self) -> list[dict[str, Any]]:
        """What `sockd ps` shows, by name."""
        return [self._services[name].row() for name in sorted(self._services)]

    def _adopt(self, name: str) -> None:
        """Have the service of a function as its version says, or none."""
        function = None if self._is_closed else self._live.by_name.get(name)
        if function is not None and function.version.config.service is not None:
            self._of(function).adopt()
        elif (service := self._services.pop(name, None)) is not None:
            service.close()

    def _of(self, function: Function) -> Service:
        name = function.version.record.name
        service = self._services.get(name)
        if service is None or not service.is_of(function):
            if service is not None:
                service.close()
            service = self._services[name] = Service(function, self._note, self._parts)
        return service

    def _note(self, record: LogRecord) -> None:
        for listener in self.log_listeners:
            listener(record)
