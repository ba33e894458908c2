"""The permission that each route of the management API requires of a key: one table.

    POLICY: GET requires read; what runs a function, now or later, requires invoke; all other requests, and values of an
    environment, require deploy. A key for some functions allows requests about one of these; of events, schedules and traces
    it sees those of its functions, and others answer as unknown ones do. Requests about keys, and those that
    open a port on the worker's host, work only over the local management socket. A request that is not in the table requires
    deploy for the whole worker.

Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from starlette.routing import compile_path

from sockd.base.errors import KeyNotEnough
from sockd.http.access.keys import Key, Right


class Scope(enum.Enum):
    """What a request is about."""

    WORKER = "the worker, or more than one function: a key for some functions is not enough"
    FUNCTION = "the function in the path"
    NARROWED = "what the key may see: the route shows and changes no more than that"
    ANY_KEY = "the key itself"
    ASKED = "what the key may of the worker that is asked, which checks it"
    LOCAL = "root and management.group, over the local socket"


class Permission(NamedTuple):
    """What one route requires."""

    scope: Scope
    rights: tuple[Right, ...] = ()
    """All of these."""
    rights_with_query: tuple[Right, ...] = ()
    """All of these instead, if it is not empty and the request has a query."""

    def check(self, key: Key, function: str | None, *, has_query: bool) -> None:
        """Check a key. Args: function: the one in the path. Raises: KeyNotEnough."""
        if self.scope is Scope.LOCAL:
            raise KeyNotEnough("this is for root on the worker's host (and management.group), over its own socket")
        if self.scope is Scope.WORKER:
            function = None
        elif self.scope is Scope.NARROWED:
            function = key.functions[0] if key.functions else None
        for right in (self.rights_with_query if has_query else ()) or self.rights:
            key.check(right, function)


_READ = Permission(Scope.FUNCTION, ("read",))
_DEPLOY = Permission(Scope.FUNCTION, ("deploy",))
_INVOKE = Permission(Scope.FUNCTION, ("invoke",))
_READ_NARROWED = Permission(Scope.NARROWED, ("read",))
_READ_ALL = Permission(Scope.WORKER, ("read",))
_DEPLOY_ALL = Permission(Scope.WORKER, ("deploy",))
_DEPLOY_NARROWED = Permission(Scope.NARROWED, ("deploy",))
_RUN_LATER = Permission(Scope.NARROWED, ("deploy", "invoke"))
_LOCAL = Permission(Scope.LOCAL)

PERMISSIONS: Mapping[tuple[str, str], Permission] = {
    ("GET", "/functions"): _READ_NARROWED,
    ("GET", "/functions/{name}"): _READ,
    ("PUT", "/functions/{name}"): _DEPLOY,
    ("DELETE", "/functions/{name}"): _DEPLOY,
    ("POST", "/functions/{name}/invoke"): _INVOKE,
    ("PUT", "/functions/{name}/initscript"): _DEPLOY,
    ("POST", "/functions/{name}/record"): Permission(Scope.FUNCTION, ("deploy", "invoke")),
    ("POST", "/functions/{name}/debug"): _LOCAL,
    ("PATCH", "/functions/{name}/settings"): _DEPLOY,
    ("GET", "/functions/{name}/logs"): _READ,
    ("GET", "/functions/{name}/imports"): _READ,
    ("GET", "/functions/{name}/env"): Permission(Scope.FUNCTION, ("read",), ("deploy",)),
    ("PATCH", "/functions/{name}/env"): _DEPLOY,
    ("PUT", "/functions/{name}/secrets/{key}"): _DEPLOY,
    ("DELETE", "/functions/{name}/secrets/{key}"): _DEPLOY,
    ("GET", "/functions/{name}/versions"): _READ,
    ("POST", "/functions/{name}/versions"): _DEPLOY,
    ("DELETE", "/functions/{name}/versions/{number}"): _DEPLOY,
    ("PUT", "/functions/{name}/aliases/{alias}"): _DEPLOY,
    ("DELETE", "/functions/{name}/aliases/{alias}"): _DEPLOY,
    ("PUT", "/functions/{name}/provisioned/{qualifier}"): _DEPLOY,
    ("POST", "/functions/{name}/rollback"): _DEPLOY,
    ("GET", "/functions/{name}/urls"): _READ,
    ("PUT", "/functions/{name}/url"): _DEPLOY,
    ("DELETE", "/functions/{name}/url"): _DEPLOY,
    ("GET", "/functions/{name}/event-invoke-config"): _READ,
    # Its destinations require invoke, for the functions that they name: the route checks that.
    ("PUT", "/functions/{name}/event-invoke-config"): _DEPLOY,
    ("DELETE", "/functions/{name}/event-invoke-config"): _DEPLOY,
    ("GET", "/events"): _READ_NARROWED,
    ("DELETE", "/events"): _DEPLOY_NARROWED,
    ("POST", "/events/retry"): _RUN_LATER,
    ("GET", "/events/{id}"): _READ_NARROWED,
    ("DELETE", "/events/{id}"): _DEPLOY_NARROWED,
    ("POST", "/events/{id}/retry"): _RUN_LATER,
    ("GET", "/schedules"): _READ_NARROWED,
    ("PUT", "/schedules/{schedule}"): _RUN_LATER,
    ("PATCH", "/schedules/{schedule}"): _RUN_LATER,
    ("DELETE", "/schedules/{schedule}"): _DEPLOY_NARROWED,
    ("GET", "/secrets"): _READ_ALL,
    ("GET", "/status"): _READ_NARROWED,
    ("GET", "/tree"): _READ_ALL,
    ("GET", "/live"): _READ_ALL,
    ("GET", "/services"): _READ_NARROWED,
    ("GET", "/workers"): _READ_NARROWED,
    ("GET", "/workers/{worker}/{path:path}"): Permission(Scope.ASKED),
    ("PUT", "/drain"): _DEPLOY_ALL,
    ("DELETE", "/drain"): _DEPLOY_ALL,
    ("GET", "/traces"): _READ_NARROWED,
    ("GET", "/traces/{request_id}"): _READ_NARROWED,
    ("GET", "/packages"): _READ_ALL,
    ("POST", "/packages"): _DEPLOY_ALL,
    ("POST", "/packages/forgive"): _DEPLOY_ALL,
    ("DELETE", "/packages/{key}"): _DEPLOY_ALL,
    ("GET", "/images"): _READ_ALL,
    ("POST", "/images"): _DEPLOY_ALL,
    ("POST", "/images/gc"): _DEPLOY_ALL,
    ("GET", "/images/du"): _READ_ALL,
    ("GET", "/images/{image:path}"): _READ_ALL,
    ("DELETE", "/images/{image:path}"): _DEPLOY_ALL,
    ("GET", "/key"): Permission(Scope.ANY_KEY),
    ("GET", "/keys"): _LOCAL,
    ("POST", "/keys"): _LOCAL,
    ("DELETE", "/keys/{name}"): _LOCAL,
}
"""By method and path; HEAD requires what GET does."""
_PATTERNS = [(method, compile_path(path)[0], permission) for (method, path), permission in PERMISSIONS.items()]


def check_request(key: Key, method: str, path: str, query: str = "") -> None:
    """Check whether a key allows a request. Args: path: decoded once, as the routes are found. Raises: KeyNotEnough."""
    method = "GET" if method == "HEAD" else method
    for wanted, pattern, permission in _PATTERNS:
        found = pattern.match(path) if method == wanted else None
        if found:
            name = found.groupdict().get("name")
            permission.check(key, name.partition(":")[0] if name is not None else None, has_query=query != "")
            return
    _DEPLOY_ALL.check(key, None, has_query=query != "")
