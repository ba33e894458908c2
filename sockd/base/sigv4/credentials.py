"""What a client signs with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key, its secret, and the token if they are of a session."""

    access_key: str
    secret_key: str
    session_token: str | None = None
