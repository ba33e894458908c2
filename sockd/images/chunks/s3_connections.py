"""Signed HTTP requests to one S3 endpoint, with bounded retries.

Any threads may call at once. An exchange is repeated after a connection that broke, an answer that ended early, a deadline,
and the statuses that S3 uses for "again, later"; so every request must be one that may be repeated. Credentials are in no
message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sockd.base.errors import StoreUnavailable
from sockd.base.http_client.pool import Answer, ConnectionPool
from sockd.base.http_client.retries import Again, GaveUp, Retries, Stopped
from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.signer import Signer

AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store may take."""

    connect_s: float = 2.0
    attempt_s: float = 10.0
    """One attempt, from its first byte to the last of its answer."""
    attempts: int = 3
    pause_s: float = 0.1
    """Before the second attempt; doubles with each."""


class S3Connections:
    """The connections to one endpoint.

    Args:
        store: its name in messages.
        endpoint: http:// or https://, a host, and a port if it is not the usual one."""

    def __init__(self, store: str, endpoint: str, credentials: Credentials, *, region: str, patience: Patience) -> None:
        """Raises: ValueError if the endpoint is none."""
        self._store = store
        self._pool = ConnectionPool(endpoint, connect_s=patience.connect_s, repeats=True)
        self._signer = Signer(credentials, service="s3", region=region)
        self._patience = patience
        self._retries = Retries(patience.attempts, patience.pause_s)

    @property
    def requests(self) -> int:
        """Exchanges begun."""
        return self._pool.requests

    @property
    def heard_s(self) -> float:
        """The time of the last byte that arrived (time.monotonic)."""
        return self._pool.heard_s

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
    ) -> Answer:
        """The first answer whose status is not in AGAIN.

        Args:
            target: path and query, percent-encoded.
            limit_bytes: longest body of an answer.

        Raises: StoreUnavailable; TooLong."""

        def attempt(number: int) -> Answer:
            fields = {"Host": self._pool.host, **(headers or {})}
            self._signer.sign(method, target, fields, body)
            answer = self._pool.exchange(
                method, target, fields, body, limit_bytes=limit_bytes, deadline_s=self._patience.attempt_s
            )
            if answer.status in AGAIN:
                raise Again(f"it answers {answer.status} {error_code(answer.body)}".rstrip())
            return replace(answer, is_repeated=answer.is_repeated or number > 1)

        try:
            return self._retries.run(attempt)
        except GaveUp as failure:
            raise StoreUnavailable(self._store, f"{failure} ({self._retries.attempts} attempts)") from None
        except Stopped:
            raise StoreUnavailable(self._store, "it was closed") from None

    def close(self) -> None:
        """Close idle connections, and end requests that are under way: they fail."""
        self._retries.stop()
        self._pool.close()


def error_code(body: bytes) -> str:
    """S3's own code of an error."""
    _, found, rest = body.partition(b"<Code>")
    return rest.partition(b"</Code>")[0][:64].decode(errors="replace") if found else ""
