"""The RPC stacks: what initscripts speak with, on the engine's one event loop.

    dialer        address → connection                    policy      which addresses a function may reach
    s3, s3_object, ranges                                 aws         endpoints; signing, their signatures
    aws_json      SQS, DynamoDB                           http        requests as the guest words them
    http_client   an origin: kept connections, retries    http_stream one connection; http_reply, http_head, http_body
    grpc_channel  unary calls                             tcp         anything else
    pool          idle connections of all runs            relay       TLS connections given to apps
    reserved      one of them for one guest, whose thread writes the first request

Replies are received straight into the run's region where their length is known beforehand. A peer is hostile until its
bytes say otherwise, and a guest always.
"""

from sockd_initscripts.rpc.base import Connection, Reply, RpcFailed, RpcTiming
from sockd_initscripts.rpc.dialer import Dialer
from sockd_initscripts.rpc.limits import RpcLimits
from sockd_initscripts.rpc.policy import DENIED, EndpointPolicy
from sockd_initscripts.rpc.pool import ConnectionPool
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
