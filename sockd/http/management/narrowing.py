"""What a key for some functions sees of routes whose path names no function: what is about these, and nothing else.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from sockd.http.management.keyed import key_of


def functions_of(request: Request) -> Sequence[str]:
    """The functions that the key of a request is for; empty: all."""
    key = key_of(request)
    return key.functions if key is not None else ()


def check_function(request: Request, function: str) -> None:
    """Check that a request may be about a function. Raises: KeyNotEnough."""
    if (key := key_of(request)) is not None:
        key.check_function(function)


def wanted(request: Request, function: str | None) -> Sequence[str | None]:
    """The functions that a request wants: the one that it names, or else those of its key; None: all. Raises: KeyNotEnough."""
    if function is not None:
        check_function(request, function)
        return [function]
    return functions_of(request) or [None]


def sees(request: Request, function: str) -> bool:
    """Whether something of this function is shown to a request."""
    return function in (functions_of(request) or [function])
