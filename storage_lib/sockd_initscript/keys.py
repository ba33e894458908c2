"""Keys of RPCs: a reply belongs to a read whose RPC has the same key."""

from __future__ import annotations

import json

Key = tuple[str, ...]


def key_of(rpc: list[str]) -> Key:
    """What equal RPCs have in common: DynamoDB's requests are JSON, whose members have no order."""
    method, *rest = map(str, rpc) if rpc else [""]
    if len(rest) == 1 and method.startswith("dynamodb."):
        try:
            return (method, json.dumps(json.loads(rest[0]), sort_keys=True))
        except (ValueError, RecursionError):
            return (method, *rest)
    return (method, *rest)
