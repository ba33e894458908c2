"""Access to `/run`, `/status` and `/metrics`: all clients, clients with a key, or none.

    POLICY: the stricter of the worker's rule (`http.run`) and the function's (`run` in its sockd.toml) applies: open, keys, off.
    AWS's Invoke without a signature follows the same rule. Function URLs and signed requests have their own rules. Over
    run.sock, root and members of `management.group` may call every function.

A function's rule is that of its last deploy, for all its versions. Owns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sockd.base.config import ErrorDetail, HttpConfig, RunRule
from sockd.base.errors import RunClosed, SockdError
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Keys, Right
from sockd.http.access.managers import Managers
from sockd.http.server.connection import Connection
from sockd.http.server.listening.sockets import parse_listen
from sockd.http.server.messages.head import Head

AUTHORIZATION = b"authorization"
_STRICTNESS: dict[RunRule, int] = {"open": 0, "keys": 1, "off": 2}
Readable = Literal["status", "metrics"]


def rule_of(value: bool | Literal["keys"]) -> RunRule:
    """The rule for a value of the configuration."""
    return "keys" if value == "keys" else "open" if value else "off"


class Callers:
    """The rules of one API."""

    def __init__(
        self,
        config: HttpConfig,
        keys: Keys | None = None,
        rules: Mapping[str, RunRule] | None = None,
        managers: Managers | None = None,
        error_details: Mapping[str, ErrorDetail] | None = None,
    ) -> None:
        """Args:
        rules, error_details: the current ones of functions; managers: who may call every function, and read its errors."""
        self._run = rule_of(config.run)
        self._page_rules: dict[Readable, RunRule] = {
            "status": rule_of(config.status),
            "metrics": rule_of(config.metrics),
        }
        self._keys = keys or Keys()
        self._rules = rules if rules is not None else {}
        """Rules of the functions whose rule is not open, by name."""
        self._managers = managers
        is_here = is_loopback(parse_listen(config.listen)[0])
        self.errors = config.errors or ("full" if is_here else "id")
        self.error_details = error_details if error_details is not None else {}
        """The `errors` setting of each function that has one, by name. If this is empty and `errors` is full, nothing is
        hidden from any caller."""

    def is_open(self, name: str) -> bool:
        """Whether a call of the function needs no key."""
        return self._run == "open" and name not in self._rules

    def check_call(self, name: str, connection: Connection, head: Head) -> bool:
        """Check whether a request may call a function. Returns: whether its Authorization header is a key of ours, which must
        not reach the function. Raises: RunClosed, KeyNeeded, KeyNotEnough."""
        if self.is_open(name) or self._is_manager(connection):
            return False
        own = self._rules.get(name, "open")
        rule = max(self._run, own, key=_STRICTNESS.__getitem__)
        if rule == "off":
            raise RunClosed("" if self._run == "off" else name)
        self._check_key(head, "invoke", name)
        return True

    def hides_errors(self, name: str, connection: Connection, head: Head) -> bool:
        """Return whether a function's own error is hidden from a caller, who then gets the request's id alone.

        POLICY: `http.errors`, or the function's own `errors`; callers that may read the function's logs get all of it in any
        case."""
        if self.error_details.get(name, self.errors) == "full" or self._is_manager(connection):
            return False
        try:
            self._check_key(head, "read", name)
        except SockdError:
            return True
        return False

    def check_unsigned(self, name: str) -> None:
        """Whether AWS's Invoke may call a function without a signature. Raises: RunClosed."""
        if not self.is_open(name):
            raise RunClosed("" if self._run != "open" else name)

    def check_read(self, readable: Readable, connection: Connection, head: Head, closed: SockdError) -> None:
        """Whether this request may read a page. Args: closed: the error if it is off. Raises: it, KeyNeeded, KeyNotEnough."""
        rule = self._page_rules[readable]
        if rule == "open" or self._is_manager(connection):
            return
        if rule == "off":
            raise closed
        self._check_key(head, "read", None)

    def _check_key(self, head: Head, right: Right, function: str | None) -> None:
        shown = [value for name, value in head.headers if name == AUTHORIZATION]
        self._keys.bearer(shown[0] if len(shown) == 1 else None).check(right, function)

    def _is_manager(self, connection: Connection) -> bool:
        return self._managers is not None and self._managers.include(connection.transport.get_extra_info("socket"))
