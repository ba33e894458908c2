"""Deploying a decorated function, if the worker has not got this very code of it.

Goes over the management socket, which is root's. Who may not use it calls what is there. Owns nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from sockd.remote.connections import local_url, manage
from sockd.remote.errors import DeployFailed, NoWorker
from sockd.remote.source import Packed

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def deploy_if_changed(name: str, packed: Callable[[], Packed]) -> None:
    """Have the worker run the code that is here; who cannot deploy leaves it as it is.

    Args: packed: makes the code; it is not asked when nothing can be deployed. Raises: DeployFailed."""
    if not _is_local(os.environ.get("SOCKD_URL")):
        return
    try:
        status, body = manage("GET", f"/functions/{quote(name)}")
    except (PermissionError, NoWorker):
        return  # the call will say what it finds
    code = packed()
    if status != 200 or json.loads(body)["version"] != code.digest:
        deploy(name, code)


def deploy(name: str, code: Packed) -> dict[str, Any]:
    """Deploy; what the worker says of the function. Raises: DeployFailed, NoWorker."""
    try:
        _, body = manage("PUT", f"/functions/{quote(name)}", code.archive)
    except PermissionError:
        raise DeployFailed("only root deploys: sudo sockd deploy FILE.py") from None
    last: dict[str, Any] = json.loads(body.splitlines()[-1])
    if "result" in last:
        result: dict[str, Any] = last["result"]
        return result
    error = last.get("error", last)
    raise DeployFailed(f"{name}: {error.get('errorMessage', 'the worker stopped before it was done')}")


def _is_local(url: str | None) -> bool:
    """Whether calls to this URL reach the worker that the management socket is of."""
    return url is None or _address(url) == _address(local_url() or "")


def _address(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    host = "localhost" if parts.hostname in LOOPBACK else parts.hostname
    return host, parts.port
