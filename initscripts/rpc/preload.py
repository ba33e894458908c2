"""Everything that the RPC stacks would load at first use: modules, certificates, the resolver, gRPC's core.

Called before the engine gives up its file system. Owns nothing.
"""

from __future__ import annotations

import asyncio
import ssl

from sockd_initscripts.rpc.aws.endpoints import AwsService
from sockd_initscripts.rpc.dialing.addresses import Origin, parse_ip
from sockd_initscripts.rpc.dialing.tls import client_context
from sockd_initscripts.rpc.grpc_channel import new_channel

_KEYS = {"AWS_ACCESS_KEY_ID": "preload", "AWS_SECRET_ACCESS_KEY": "preload"}


async def preload() -> ssl.SSLContext:
    """Use each thing once, on the loop that will use them later; takes about a second. Returns the TLS context that the
    pool is to have."""
    for name in ("s3", "sqs"):
        AwsService(name, _KEYS).head("GET", "/", {})
    loop = asyncio.get_running_loop()
    await loop.getaddrinfo("localhost", 0)  # a thread of the executor, the codec of names, libc's resolver
    ip = parse_ip("127.0.0.1")
    assert ip is not None
    channel = new_channel(ip, Origin("grpc", "localhost", 9), idle_s=1)
    channel.get_state()
    await channel.close()
    return client_context()
