"""The RPC stacks: what initscripts speak with, on the engine's one event loop.

    dialer        address → connection; `dialing`: which addresses a function may reach, and their sockets
    http1         an origin: kept connections, retries; one connection and its replies; TLS connections given to apps
    aws           S3, SQS and DynamoDB over `http1`
    grpc_channel  unary calls                             tcp         anything else

Replies are received straight into the run's region where their length is known beforehand. A peer is hostile until its
bytes say otherwise, and a guest always.
"""

from sockd_initscripts.rpc.base import Connection, Reply, RpcFailed, RpcTiming
from sockd_initscripts.rpc.dialer import Dialer
from sockd_initscripts.rpc.dialing.policy import DENIED, EndpointPolicy
from sockd_initscripts.rpc.http1.pool import ConnectionPool
from sockd_initscripts.rpc.limits import RpcLimits
from sockd_initscripts.rpc.preload import preload

__all__ = [
    "DENIED",
    "Connection",
    "ConnectionPool",
    "Dialer",
    "EndpointPolicy",
    "Reply",
    "RpcFailed",
    "RpcLimits",
    "RpcTiming",
    "preload",
]
