"""`grpc://`: unary calls by method path ("/pkg.Service/Method"), messages as raw bytes; without TLS.

grpcio hands a message out as one `bytes`, so a reply is copied once. The status of a reply is gRPC's (0 = OK), with the
server's message as its body if it is another; one without an answer is a failed RPC. Channels are kept: each stays
connected to the one address that was checked when it was made. Owns nothing; channels are the pool's.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.base import (
    Body,
    Connection,
    Reply,
    ReplyBuffer,
    RpcTiming,
    malformed,
    monotonic_ns,
    refused,
    timed_out,
)
from sockd_initscripts.rpc.dialing.addresses import IpAddress, Origin
from sockd_initscripts.rpc.dialing.dialing import resolve, within
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy
from sockd_initscripts.rpc.http1.pool import ConnectionPool, Place

_METHOD = re.compile(r"/[A-Za-z0-9_.]+/[A-Za-z0-9_]+")
MESSAGE_BYTES = 256 << 20
"""The largest message: a run's region by default."""


class GrpcConnection(Connection):
    """A server."""

    def __init__(self, address: str, place: Place, policy: EndpointPolicy, pool: ConnectionPool) -> None:
        super().__init__(address)
        self._place = place
        self._policy = policy
        self._pool = pool
        self._opening = asyncio.get_running_loop().create_task(self._open())
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        import grpc

        if not _METHOD.fullmatch(method):
            raise malformed(f"{method[:80]!r} is not /package.Service/Method")
        channel = await asyncio.shield(self._opening)
        timing.connection = "kept" if channel.get_state() is grpc.ChannelConnectivity.READY else "new"
        unary = channel.unary_unary(method)
        timing.sent_ns = monotonic_ns()
        try:
            message, status = await unary(bytes(body), timeout=self._pool.limits.silence_s), 0
        except grpc.aio.AioRpcError as error:
            status = error.code().value[0]
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise refused(f"{self.address}: {error.details()}") from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise timed_out(f"{self.address}: {error.details()}") from error
            message = (error.details() or "").encode()
        timing.first_byte_ns = timing.done_ns = monotonic_ns()
        timing.bytes = len(message)
        reply_buffer = ReplyBuffer(region)
        if message:
            reply_buffer.allocate(len(message))[:] = message
        return Reply(status, reply_buffer.buffer)

    def close(self) -> None:
        self._opening.cancel()

    async def _open(self) -> Any:
        async with within(self._pool.limits.connect_s, self.address):
            ip = (await resolve(self._place.origin, self._policy))[0]
        channel: Any = self._pool.channel(
            self._place, str(ip), lambda: new_channel(ip, self._place.origin, idle_s=self._pool.limits.idle_s)
        )
        channel.get_state(try_to_connect=True)
        return channel


def new_channel(ip: IpAddress, origin: Origin, *, idle_s: float) -> Any:
    """An aio channel to exactly that address: no resolver, no proxy of the environment."""
    import grpc.aio

    return grpc.aio.insecure_channel(
        f"ipv4:{ip}:{origin.port}" if ip.version == 4 else f"ipv6:[{ip}]:{origin.port}",
        options=[
            ("grpc.default_authority", origin.authority),
            ("grpc.client_idle_timeout_ms", round(idle_s * 1000)),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
        ],
    )
