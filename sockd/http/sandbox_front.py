"""The application that functions with a private network reach at their gateway: `/run` of functions that their `egress` names.

Owns nothing. Besides the caller's egress rules, the rules of the public port hold (`http.run`, a function's `run`): a rule of
egress opens the way to a function, and gives no right to call it.
"""

from __future__ import annotations

from collections.abc import Callable

from sockd.base.config import HttpConfig
from sockd.base.errors import SockdError
from sockd.http.access.callers import Callers
from sockd.http.front import NO_SUCH_PAGE, Called, Front, Page
from sockd.http.paths import NoSuchPage
from sockd.http.replays import Replays
from sockd.http.server.connection import Connection
from sockd.http.server.messages.head import Head
from sockd.http.worker import Worker
from sockd.isolation.networks.egress import NAMES_OF_THE_HOST, Egress

EgressOf = Callable[[str], Egress | None]
"""Gets the address of a sandbox, and returns the rules of its function; None: it has none now."""


class NotInEgress(SockdError):
    """The function that calls has no rule for the one that it calls."""

    status = 403
    error_type = "AccessDeniedException"


class SandboxFront(Front):
    """The application of the gateway."""

    def __init__(
        self, worker: Worker, config: HttpConfig, *, replays: Replays, callers: Callers, egress_of: EgressOf
    ) -> None:
        """Args: replays, callers: those of the public port."""
        super().__init__(worker, config, replays=replays, callers=callers)
        self._hosts.known.update(NAMES_OF_THE_HOST)
        self._egress_of = egress_of

    def check_caller(self, target: Called | Page, connection: Connection, head: Head) -> bool:
        """As `Front.check_caller`. Raises: NotInEgress, NoSuchPage as well."""
        if not isinstance(target, Called):
            raise NoSuchPage(NO_SUCH_PAGE)
        address: str = connection.transport.get_extra_info("peername")[0]
        egress = self._egress_of(address)
        if egress is None or target.name not in egress.functions:
            raise NotInEgress(f'the function that calls needs egress = ["function:{target.name}"]')
        return super().check_caller(target, connection, head)
