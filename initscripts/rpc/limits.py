"""How long and how much the RPC stacks wait, keep and take. Owns nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """For all connections of an engine; what a single run may use is its budget's business."""

    connect_s: float = 5.0
    """For a name, a TCP connection and its TLS handshake together."""
    silence_s: float = 30.0
    """Without any byte of an awaited reply. Noticed after up to twice this time, which saves a timer per read."""
    hedge_s: float = 1.0
    """Without any byte of a reply before an object is asked for once more, over another connection."""
    repeat_after_s: tuple[float, ...] = (0.05, 0.2)
    """Before each further try of a read of S3 that met a 5xx or a lost connection, as SDKs of AWS do."""
    idle_s: float = 60.0
    """Before a kept connection is closed."""
    idle_per_origin: int = 16
    idle: int = 128
    channels: int = 64
    """gRPC's, idle or not."""
    relays: int = 64
    """TLS connections that apps use through the engine."""
    head_bytes: int = 32 * 1024
    first_range_bytes: int = 2 << 20
    """What is asked first of an object of unknown size; objects up to this need one request."""
    part_bytes: int = 512 * 1024
    """The least that is worth another request."""
    parts: int = 8
    """Requests for one object at once."""
