"""Deploying a decorated function, if the worker has not got this very code of it.

Goes over the management socket, which is root's. Who may not use it calls what is there. Owns nothing.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from sockd.base.call_signature import key_id
from sockd.base.own_command import runnable
from sockd.base.printable import printable
from sockd.client.python.connections import local_url, manage
from sockd.client.python.errors import DeployFailed, NameTaken, NoWorker
from sockd.client.python.source import Packed
from sockd.client.python.workers import RemoteWorker

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Deployer:
    """On whose behalf a function is deployed."""

    source: str
    """FILE:FUNCTION."""
    key: bytes | None
    """What its calls are signed with; None: it takes and gives no pickles."""

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the deploy request."""
        return {"source": self.source, **({"key": self.key.hex()} if self.key else {})}

    def has_deployed(self, function: dict[str, Any], digest: str) -> bool:
        """Whether the worker's function is this very code, from this source and with this key."""
        wanted = (digest, self.source, key_id(self.key) if self.key else "")
        return wanted == (function["version"], function.get("source"), function.get("call_key_id"))


def deployed(name: str) -> dict[str, Any] | None:
    """What the worker that calls will reach says of its function, empty if it has none; None: this user cannot deploy there."""
    if not _is_local(os.environ.get("SOCKD_URL")):
        return None
    try:
        status, body = manage("GET", f"/functions/{quote(name)}")
    except (PermissionError, NoWorker):
        return None  # the call will say what it finds
    found: dict[str, Any] = json.loads(body) if status == 200 else {}
    return found


def deploy(
    name: str,
    code: Packed,
    deployer: Deployer,
    *,
    force: bool = False,
    check: bool = True,
    worker: RemoteWorker | None = None,
) -> dict[str, Any]:
    """Deploy; what the worker says of the function.

    Args: force: although the function was deployed from another source; check: whether the new version is started once
        before calls go to it; worker: one elsewhere.
    Raises: NameTaken, DeployFailed, NoWorker."""
    if code.secrets:
        warnings.warn(
            f"{name}: left out, as possible secrets: {', '.join(code.secrets)}; a line !/PATH in .sockdignore packs one; "
            "for variables: sockd secret set",
            stacklevel=3,
        )
    options = {**({"force": True} if force else {}), **({} if check else {"check": False})}
    overrides = json.dumps({"deployer": deployer.fields, **options})
    try:
        path = f"/functions/{quote(name)}"
        _, body = manage("PUT", path, code.archive, {"x-sockd-overrides": overrides}, worker)
    except PermissionError:
        raise DeployFailed(f"only root deploys: {runnable('sudo sockd deploy FILE.py')}") from None
    *steps, last = map(json.loads, body.splitlines())
    if "result" in last:
        result: dict[str, Any] = last["result"]
        return {**result, "notes": [printable(step["progress"]) for step in steps if step.get("note")]}
    error = last.get("error", last)
    kind = NameTaken if last.get("status") == 409 else DeployFailed
    stack = "".join(error.get("stackTrace") or ()).rstrip()
    words = f"{name}: {error.get('errorMessage', 'the worker stopped before it was done')}"
    raise kind(printable(f"{words}\n{stack}" if stack else words))


def _is_local(url: str | None) -> bool:
    """Whether calls to this URL reach the worker that the management socket is of."""
    return url is None or _address(url) == _address(local_url() or "")


def _address(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    host = "localhost" if parts.hostname in LOOPBACK else parts.hostname
    return host, parts.port
