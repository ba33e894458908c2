"""A gRPC server of raw messages for the tests; prints its port, ends with its stdin."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

_ended = threading.Event()


def _same(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def _peer(request: bytes, context: grpc.ServicerContext) -> bytes:
    return str(context.peer()).encode()


def _missing(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    raise AssertionError


def _never(request: bytes, context: grpc.ServicerContext) -> bytes:
    _ended.wait()
    return b""


def main() -> None:
    methods = {"Same": _same, "Peer": _peer, "Missing": _missing, "Never": _never}
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    _ended.set()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
