"""The shards of a vector database behind gRPC, as raw bytes: `/vectordb.Shards/Get` of `message GetShard { string name = 1; }`.

A shard's bytes follow from its name and size alone (`shard`), so that both ends can check them. The server is best run in
a process of its own (`peers.vector_db`): grpcio keeps threads and descriptors that outlive it.
"""

from __future__ import annotations

import hashlib
from concurrent import futures
from typing import Any

import grpc

GET = "/vectordb.Shards/Get"
ECHO = "/vectordb.Shards/Echo"
"""Answers with the request's bytes."""
SHARD_BYTES = 300_000


def shard(name: str, size: int = SHARD_BYTES) -> bytes:
    """The bytes of a shard."""
    return hashlib.shake_128(name.encode()).digest(size)


def get_shard(name: str) -> bytes:
    """The request for a shard."""
    data = name.encode()
    assert len(data) < 128
    return b"\x0a" + bytes([len(data)]) + data


class Shards(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """The service; every shard but `missing` is there."""

    def service(self, handler_call_details: Any) -> Any:
        methods = {GET: self._get, ECHO: lambda request, context: request}
        behaviour = methods.get(handler_call_details.method)
        # Without serializers bytes are passed as they are.
        return behaviour and grpc.unary_unary_rpc_method_handler(behaviour)

    def _get(self, request: bytes, context: Any) -> bytes:
        if len(request) < 2 or request[0] != 0x0A or request[1] != len(request) - 2:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a GetShard")
        name = request[2:].decode()
        if name == "missing":
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such shard")
        return shard(name)


def serve(port: int = 0) -> tuple[grpc.Server, int]:
    """A running server, the caller's to stop, and its port."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Shards(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, port
