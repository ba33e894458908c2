"""Addresses to connections: one per function, with its environment and its policy.

Owns which scheme is spoken by what. The connections it makes are their callers'.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from sockd_initscripts.rpc.aws.aws_json import AwsJsonConnection
from sockd_initscripts.rpc.aws.endpoints import AwsService, tenant
from sockd_initscripts.rpc.aws.s3 import S3Connection
from sockd_initscripts.rpc.base import Connection, RpcFailed, malformed, unsupported
from sockd_initscripts.rpc.dialing.addresses import Origin, parse_ip, parse_origin
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy
from sockd_initscripts.rpc.grpc_channel import GrpcConnection
from sockd_initscripts.rpc.http1.http import HttpConnection
from sockd_initscripts.rpc.http1.http_client import HttpClient
from sockd_initscripts.rpc.http1.pool import ConnectionPool, Place
from sockd_initscripts.rpc.tcp import TcpConnection

_SERVICES = ("s3:", "sqs:", "dynamodb:")
_SIGNED = "signed"
"""The tenant of connections whose requests each carry their own signature."""


class Dialer:
    """What the initscripts of one function connect with. Used on the engine's loop, but for `reserve`."""

    def __init__(
        self,
        env: Mapping[str, str],
        policy: EndpointPolicy,
        pool: ConnectionPool,
        *,
        authorities: bytes | None = None,
    ) -> None:
        """Args: authorities: certificates (PEM) of the only ones that AWS's services are trusted by; None: the system's."""
        self._env = env
        self._trust = pool.trust(authorities)
        self._policy = policy
        self._pool = pool
        self._tenant = tenant(env)
        self._services: dict[str, AwsService] = {}

    def reserve(self, address: str) -> Connection | None:
        """In any thread: a connection to where one is open and kept, and which is for requests over HTTP without TLS. None:
        there is none, or `connect` says why not."""
        try:
            service = self._service(address[:-1]) if address in _SERVICES else None
            origin = service.origin if service else self._checked(parse_origin(address))
        except RpcFailed:
            return None
        if origin.scheme != "http":
            return None
        client = self._aws_client(origin) if service else self._client(origin)
        if not client.reserve():
            return None
        return self._aws(address, service, client) if service else HttpConnection(address, client)

    def connect(self, address: str) -> Connection:
        """A connection that is established in the background, unless one is kept. The first RPC hears of it if that
        fails. Raises: RpcFailed (denied, malformed) at once."""
        if address in _SERVICES:
            service = self._service(address[:-1])
            client = self._aws_client(service.origin)
            client.dial_ahead()
            return self._aws(address, service, client)
        origin = self._checked(parse_origin(address))
        if origin.scheme in ("http", "https"):
            client = self._client(origin)
            client.dial_ahead()
            return HttpConnection(address, client)
        if origin.scheme == "grpc":
            return GrpcConnection(address, Place(self._tenant, origin), self._policy, self._pool)
        if origin.scheme == "tcp":
            return TcpConnection.dialling(address, origin, self._policy, self._pool.limits)
        raise malformed(f"{address!r} has none of the schemes s3, sqs, dynamodb, http, https, grpc, tcp")

    def adopt(self, sock: socket.socket, address: str) -> Connection:
        """Go on with a TCP connection that an app made, idle, plain, and to where the function may connect. Takes the socket
        over unless this raises: RpcFailed (denied, malformed, unsupported)."""
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            raise unsupported("only a TCP connection can be adopted")
        try:
            peer = sock.getpeername()
        except OSError as error:
            raise malformed(f"a socket that is not connected: {error}") from error
        ip = parse_ip(peer[0])
        assert ip is not None
        service = self._service(address[:-1]) if address in _SERVICES else None
        origin = service.origin if service else parse_origin(address)
        self._policy.check(origin.host, ip, peer[1])
        if origin.scheme == "tcp":
            return TcpConnection.adopting(address, sock, self._pool.limits)
        if origin.scheme != "http":
            raise unsupported(f"connections to {address} cannot be adopted")
        sock.setblocking(False)
        client = self._client(origin)
        client.adopt(sock, ip)
        return self._aws(address, service, client) if service else HttpConnection(address, client)

    def _aws(self, address: str, service: AwsService, client: HttpClient) -> Connection:
        if service.name == "s3":
            return S3Connection(address, service, client, self._pool.limits)
        return AwsJsonConnection(address, service, client)

    def _client(self, origin: Origin) -> HttpClient:
        return HttpClient(origin, self._policy, self._pool, tenant=self._tenant)

    def _aws_client(self, origin: Origin) -> HttpClient:
        return HttpClient(origin, self._policy, self._pool, tenant=_SIGNED, trust=self._trust)

    def _service(self, name: str) -> AwsService:
        service = self._services.get(name)
        if service is None:
            service = self._services[name] = AwsService(name, self._env)
        self._checked(service.origin)
        return service

    def _checked(self, origin: Origin) -> Origin:
        self._policy.check_name(origin.host, origin.port)
        return origin
