"""The servers of a worker: for everybody, for this machine, for managers, for those with a key, and for functions.

Owns nothing: each server is closed by the stack that it is given.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from starlette.routing import Route

from sockd.base.config import Config, HttpConfig
from sockd.http.access.callers import Callers
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Keys
from sockd.http.access.managers import Managers, ManagersOnly
from sockd.http.aws.access import Access
from sockd.http.aws.lambda_api import LambdaApi
from sockd.http.front import Front
from sockd.http.management import debug, env, events, images, schedules, settings, urls, versions
from sockd.http.management import keys as keys_api
from sockd.http.management.api import LIMITS, Management
from sockd.http.management.keyed import KeyedManagement, check_listen
from sockd.http.management.peer_api import PeerApi
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.page.sources import WorkerSources
from sockd.http.sandbox_front import SandboxFront
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.bounds.buffers import BufferBudget, buffer_bytes
from sockd.http.server.connection import Application
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.inherited import HTTP, KEYED, MANAGEMENT, RUN, Inherited
from sockd.http.server.listening.sockets import parse_listen, url_of
from sockd.http.server.server import HttpServer
from sockd.http.urls.url_api import UrlApi
from sockd.isolation.networks.networks import Networks
from sockd.linux.bpf.port_guard import PortGuard
from sockd.worker.builders.api_parts import ApiParts
from sockd.worker.daemon import Daemon
from sockd.worker.state_dir import StateDir

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Guards:
    """Who is let in, as far as the configuration says."""

    access: Access
    managers: Managers

    @classmethod
    def of(cls, config: Config) -> Guards:
        """Return what a configuration says, before anything is built. Raises: BadConfig: it would open too much."""
        if config.management.listen:
            check_listen(config.management)
        return cls(Access.of(config.lambda_api, config.http), Managers.of(config.management))


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a worker."""

    public: HttpServer
    local: HttpServer
    """The same functions over a Unix socket that everybody opens."""
    management: HttpServer
    """Over a Unix socket that managers open."""
    keyed: HttpServer | None
    """The same for those with a key, where the configuration has a port for it."""

    @property
    def managing(self) -> list[HttpServer]:
        """The servers that manage the worker."""
        return [self.management, *([self.keyed] if self.keyed else [])]

    @property
    def all(self) -> list[HttpServer]:
        """Every one, in the order of the sockets' names (`ending.named_sockets`)."""
        return [self.public, self.local, *self.managing]

    @property
    def ports(self) -> list[int]:
        """Their TCP ports."""
        return [server.port for server in (self.public, self.keyed) if server]


class Listeners:
    """The servers of one worker; `open` opens them all."""

    def __init__(
        self,
        daemon: Daemon,
        guards: Guards,
        config: Config,
        state: StateDir,
        parts: ApiParts,
        inherited: Inherited,
        stack: AsyncExitStack,
    ) -> None:
        """Args: inherited: listening sockets that are there already; stack: closes what is opened."""
        self._daemon = daemon
        self._guards = guards
        self._config = config
        self._state = state
        self._inherited = inherited
        self._stack = stack
        self._limits = ConnectionLimits(connections=config.http.max_connections, stall_s=config.http.stall_s)
        self._buffers = BufferBudget(buffer_bytes(config.http))
        self._fields = f"x-sockd-worker: {config.worker_name}\r\n" if config.group.name else ""
        self._keys = parts.keys
        self._replays = parts.replays
        self._callers = Callers(
            config.http, self._keys, daemon.functions.run_rules, error_details=daemon.functions.error_details
        )
        self._app = self._management()
        self._front = self._public_front()

    async def open(self, ports: PortGuard, networks: Networks) -> Servers:
        """Listen at every address.

        Args: ports: keeps sandboxes from those of the worker; networks: whose functions may call others here.
        Raises: OSError, BadConfig."""
        servers = Servers(self._public(), self._local(), self._for_managers(), self._for_keys())
        self._inherited.check_taken()
        for port in servers.ports:
            ports.hold(port)
        self._daemon.url = url_of(self._config.http.listen, servers.public.port)
        for server in servers.all:
            await server.start()
        await networks.serve_functions(partial(self._serve_functions, networks))
        return servers

    def _public_front(self) -> Front:
        daemon, config, guards, callers = self._daemon, self._config, self._guards, self._callers
        tmp = self._state.path / "tmp"
        lambda_api = (
            LambdaApi(daemon, guards.access, config, tmp, callers, self._replays) if config.lambda_api.enabled else None
        )
        url_api = UrlApi(daemon, guards.access.signatures, config) if config.function_urls.enabled else None
        return Front(
            *(daemon, config.http, lambda_api, url_api, self._page()),
            replays=self._replays,
            callers=callers,
            peers=self._peer_api(),
        )

    def _peer_api(self) -> PeerApi | None:
        """The API for other workers, where there is a group."""
        key = self._daemon.peer_key
        if key is None:
            return None
        keyed = KeyedManagement(self._app, self._keys)
        return PeerApi(self._app, keyed, key, self._config.worker_name)

    def _page(self) -> Page | None:
        """The page for people."""
        access = PageAccess.of(self._config, self._keys)
        if access is None:
            return None
        if access.keys is not None and not access.keys.are_there:
            _log.warning("the page asks for a key, and there is none: sockd keys add NAME --may read")
        daemon, config = self._daemon, self._config
        later = daemon.later
        sources = WorkerSources(
            daemon.versions, daemon.urls, later.events, later.schedules, config, worker_url=lambda: daemon.url
        )
        return Page(daemon, sources, access, self._callers, viewers=config.page.viewers)

    def _public(self) -> HttpServer:
        return self._for_functions(self._front, self._inherited.tcp(HTTP, self._config.http.listen))

    def _local(self) -> HttpServer:
        http = self._config.http
        callers = Callers(
            msgspec.structs.replace(http, errors=http.errors or "full"),
            *(
                self._keys,
                self._daemon.functions.run_rules,
                self._guards.managers,
                self._daemon.functions.error_details,
            ),
        )
        front = Front(self._daemon, http, replays=self._replays, callers=callers)
        return self._for_functions(front, [self._inherited.unix(RUN, self._state.run_socket, 0o666)])

    def _for_functions(self, app: Application, sockets: Sequence[socket.socket]) -> HttpServer:
        """A server whose requests are for functions, as clients make them."""
        server = HttpServer(
            app,
            sockets,
            limits=self._limits,
            keep_alive_s=self._config.http.keep_alive_s,
            buffers=self._buffers,
            fields=self._fields,
        )
        self._stack.push_async_callback(server.aclose, 0.0)
        return server

    def _management(self) -> AsgiApplication:
        tmp = self._state.path / "tmp"
        more = management_routes(self._daemon, self._config, self._keys, tmp)
        return Management(self._daemon, self._config, tmp, more).app

    def _for_managers(self) -> HttpServer:
        managers = self._guards.managers
        mode = 0o600 if managers.gid is None else 0o660
        sock = self._inherited.unix(MANAGEMENT, self._state.socket, mode, managers.gid)
        return self._for_management(ManagersOnly(self._app, managers), [sock])

    def _for_keys(self) -> HttpServer | None:
        listen = self._config.management.listen
        if not listen:
            return None
        return self._for_management(KeyedManagement(self._app, self._keys), self._inherited.tcp(KEYED, listen))

    def _for_management(self, app: Application, sockets: Sequence[socket.socket]) -> HttpServer:
        """A server whose requests manage the worker."""
        server = HttpServer(app, sockets, limits=LIMITS, buffers=self._buffers, fields=self._fields)
        self._stack.push_async_callback(server.aclose, 0.0)
        return server

    async def _serve_functions(self, networks: Networks, sock: socket.socket) -> None:
        """Serve the functions that may call others, at the gateway of private networks."""
        app = SandboxFront(
            *(self._daemon, self._config.http),
            replays=self._replays,
            callers=self._callers,
            egress_of=networks.egress_of,
        )
        await self._for_functions(app, [sock]).start()


def management_routes(daemon: Daemon, config: Config, keys: Keys, tmp: Path) -> list[Route]:
    """Return the routes of the management API except those of `Management`. Args: tmp: a directory for uploads."""
    return [
        *debug.routes(daemon.calls, config.http.max_payload_bytes),
        *env.routes(daemon.environments),
        *keys_api.routes(keys),
        *settings.routes(daemon.functions),
        *versions.routes(daemon),
        *urls.routes(daemon, config),
        *images.routes(daemon.images, config.images.max_image_mb << 20, tmp),
        *events.routes(daemon.events),
        *schedules.routes(daemon.later.schedules, 2 * config.events.max_payload_bytes),
    ]


def open_without_key(config: HttpConfig) -> str:
    """What other machines may use of the port without a signature, and how each is closed; empty on loopback."""
    host, _ = parse_listen(config.listen)
    readable = [name for name in ("run", "status", "metrics") if getattr(config, name) is True]
    if is_loopback(host) or not readable:
        return ""
    return ", ".join(f"/{name} (http.{name} = false closes it)" for name in readable)
