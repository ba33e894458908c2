"""One call: arguments to an event, an answer to a result or an exception. Owns nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sockd.remote.connections import invoke
from sockd.remote.errors import DeployFailed, RemoteError
from sockd.remote.stand_in import is_json
from sockd.remote.values import pickled, unpickled

STAND_IN = '  File "/var/task/sockd.py"'
NOT_OURS = "the worker's function {name!r} is not a decorated one of this file; deploy it: sudo sockd deploy FILE.py"


@dataclass(frozen=True, slots=True)
class Target:
    """A deployed function, as calls need it."""

    url: str
    name: str
    key: bytes | None
    """What pickles are signed with; None: neither is one sent, nor is one read."""
    renamed: Mapping[str, str]
    """Modules by their names there and here, for pickles."""


def call(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result. Raises: RemoteError, NoWorker, DeployFailed when there is no such function; TypeError."""
    status, body = invoke(target.url, target.name, event_of(target, args, kwargs))
    try:
        answer = json.loads(body)
    except ValueError:
        raise RemoteError("BadAnswer", f"{target.url} answered {status} with what is no JSON") from None
    if status != 200:
        raise _failure(target, status, answer)
    if type(answer) is not dict or "sockd" not in answer:
        raise DeployFailed(NOT_OURS.format(name=target.name))
    if "json" in answer:
        return answer["json"]
    if target.key is None:
        raise RemoteError("BadAnswer", "the function answered with a pickle, but has pickle=False here")
    return unpickled(answer["pickle"], dict(target.renamed))


def event_of(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """What the stand-in takes apart. Raises: TypeError for what can be neither JSON nor a pickle."""
    listed, named = list(args), dict(kwargs)
    if is_json(listed) and is_json(named):
        return json.dumps({"sockd": 1, "args": listed, "kwargs": named}, separators=(",", ":")).encode()
    if target.key is None:
        raise TypeError(f"{target.name} has pickle=False: its arguments must be JSON")
    try:
        return json.dumps({"sockd": 1, "pickle": pickled((args, named), target.key)}).encode()
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise TypeError(f"the arguments of {target.name} cannot be sent: {error}") from error


def _failure(target: Target, status: int, answer: Any) -> Exception:
    told = answer if isinstance(answer, dict) else {}
    kind, message = str(told.get("errorType", "")), str(told.get("errorMessage", f"status {status}"))
    if status == 404:
        return DeployFailed(f"{message}; deploy it: sudo sockd deploy FILE.py")
    frames = [frame for frame in told.get("stackTrace") or () if not frame.startswith(STAND_IN)]
    return RemoteError(kind, message, frames)
