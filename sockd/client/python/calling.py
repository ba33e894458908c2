"""One call: arguments to an event, an answer to a result or an exception. Owns nothing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sockd.base.call_signature import IF_CODE, SIGNATURE, is_answer_signed, request_signature
from sockd.base.own_command import runnable
from sockd.base.printable import printable
from sockd.client.python.connections import Reply, invoke, is_authenticated
from sockd.client.python.errors import DeployFailed, OtherCode, RemoteError, UnverifiedAnswer
from sockd.client.python.printed import Printed
from sockd.client.python.retrying import persisted
from sockd.client.python.stand_in import is_json
from sockd.client.python.values import pickled, unpickled

PICKLED = b'{"sockd":1,"pickle":'
STAND_IN = '  File "/var/task/sockd.py"'
IDEMPOTENCY_KEY = "idempotency-key"
DEPLOY = "sudo sockd deploy FILE.py"
NOT_OURS = "the worker's function {name!r} is not a decorated one of this file; deploy it: {command}"

UNVERIFIED = (
    "what answered at {url} has not proved to be the worker, so its answer was not read: another program may listen there. Call "
    "over the worker's own socket (SOCKD_STATE_DIR instead of SOCKD_URL) or https, or as the user who deployed {name!r}"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A deployed function, as calls need it."""

    url: str
    name: str
    key: bytes | None
    """What calls are signed with; None: no pickle is sent, and none is read."""
    renamed: Mapping[str, str]
    """Modules by their names there and here, for pickles."""
    code: Sequence[str]
    """What may run there, as digests and source tags; the worker runs no other code."""
    is_deployer: bool = False
    """This process has seen to it that the worker knows the key: every answer is signed."""
    printed: Printed | None = None
    """Shows what calls print; None: that is not wanted, or not this user's to see."""


def call(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any], retries: int = 0) -> Any:
    """The result. Args: retries: as of `persisted`. Raises: RemoteError, UnverifiedAnswer, NoWorker, OtherCode, DeployFailed;
    TypeError."""
    event = event_of(target, args, kwargs)
    key = uuid.uuid4().hex if retries else ""
    return persisted(lambda: _tried(target, event, key), retries)


def _tried(target: Target, event: bytes, key: str) -> Any:
    """One try. Args: key: what all tries of a call have in common; empty: there is only this one. Raises: as `call`."""
    # The worker makes the nonce of a signed call the id of its request, so that its log is known before its answer. Hashing
    # is left out where it is not needed: JSON over a connection that proves by itself who answers.
    is_signed = event.startswith(PICKLED) or target.printed is not None or not is_authenticated(target.url)
    nonce = uuid.uuid4().hex if target.key is not None and is_signed else ""
    if target.printed is None:
        return _result(target, _ask(target, event, nonce, key), nonce)
    with target.printed.during(str(uuid.UUID(nonce)) if nonce else "") as call:
        reply = _ask(target, event, nonce, key)
        call.request_id = reply.request_id
        return _result(target, reply, nonce)


def _ask(target: Target, event: bytes, nonce: str, key: str) -> Reply:
    code = ",".join(target.code)
    headers = {IF_CODE: code, **({IDEMPOTENCY_KEY: key} if key else {})}
    if target.key is not None and nonce:
        headers[SIGNATURE] = request_signature(target.key, target.name, nonce, code, event)
    return invoke(target.url, target.name, event, headers)


def _result(target: Target, reply: Reply, nonce: str) -> Any:
    """What an answer holds. Raises: as `call`."""
    try:
        answer = json.loads(reply.body)
    except ValueError:
        raise RemoteError("BadAnswer", f"{target.url} answered {reply.status} with what is no JSON") from None
    if reply.status != 200:
        raise _failure(target, reply, answer)
    if type(answer) is not dict or "sockd" not in answer:
        raise DeployFailed(NOT_OURS.format(name=target.name, command=runnable(DEPLOY)))
    if ("pickle" in answer or target.is_deployer) and not _is_verified(target, reply, nonce):
        raise UnverifiedAnswer("UnverifiedAnswer", UNVERIFIED.format(url=target.url, name=target.name))
    if "json" in answer:
        return answer["json"]
    if target.key is None:
        raise RemoteError("BadAnswer", "the function answered with a pickle, but has pickle=False here")
    return unpickled(answer["pickle"], dict(target.renamed))


def started(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any], retries: int = 0) -> Any:
    """As `call`, which is made once more when its sandbox did not start in time: the function was not called."""
    try:
        return call(target, args, kwargs, retries)
    except RemoteError as error:
        if not error.is_late_start:
            raise
    return call(target, args, kwargs, retries)


def _is_verified(target: Target, reply: Reply, nonce: str) -> bool:
    """Whether the worker has proved that this is its answer to this very call."""
    if is_authenticated(target.url):
        return True
    if target.key is None:
        return True  # JSON, which anybody may have answered: `pickle=False` has no key to know better
    return is_answer_signed(target.key, target.name, nonce, reply.status, reply.body, reply.signature)


def event_of(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """What the stand-in takes apart. Raises: TypeError for what can be neither JSON nor a pickle."""
    listed, named = list(args), dict(kwargs)
    if is_json(listed) and is_json(named):
        return json.dumps({"sockd": 1, "args": listed, "kwargs": named}, separators=(",", ":")).encode()
    if target.key is None:
        raise TypeError(f"{target.name} has pickle=False: its arguments must be JSON")
    try:
        return PICKLED + json.dumps(pickled((args, named))).encode() + b"}"
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise TypeError(f"the arguments of {target.name} cannot be sent: {error}") from error


def _failure(target: Target, reply: Reply, answer: Any) -> Exception:
    status, details = reply.status, answer if isinstance(answer, dict) else {}
    kind, message = str(details.get("errorType", "")), str(details.get("errorMessage", f"status {status}"))
    if status == 412:
        return OtherCode(printable(message))
    if status == 404:
        return DeployFailed(f"{printable(message)}; deploy it: {runnable(DEPLOY)}")
    stack = details.get("stackTrace")
    frames = [str(frame) for frame in stack if not str(frame).startswith(STAND_IN)] if isinstance(stack, list) else []
    return RemoteError(kind, message, frames, retry_after_s=reply.retry_after_s)
