"""A function URL: its id, the function or alias that it leads to, who may call it, and its rules for browsers."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from sockd.base.errors import BadRequest, NoSuchFunction, SockdError

Auth = Literal["NONE", "AWS_IAM"]
Mode = Literal["BUFFERED", "RESPONSE_STREAM"]
AUTHS: tuple[Auth, ...] = get_args(Auth)
MODES: tuple[Mode, ...] = get_args(Mode)
LISTED = 100
"""The most values of one list in `Cors`; the lengths below are AWS's, too."""
MAX_AGE_S = 86400
_ORIGIN = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9.:\[\]_*-]{1,240}|null")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,1024}")
_METHOD = re.compile(r"\*|[A-Z]{1,6}")


class UrlExists(SockdError):
    """The function, or the alias, has a URL already."""

    status = 409
    error_type = "ResourceConflictException"


class NoSuchUrl(NoSuchFunction):
    """The function, or the alias, has no URL; or no URL has this id."""


class Cors(msgspec.Struct, frozen=True, omit_defaults=True, rename="pascal", kw_only=True, forbid_unknown_fields=True):
    """What browsers may do from pages of other origins, by AWS's names."""

    allow_credentials: bool = False
    allow_headers: list[str] = []
    allow_methods: list[str] = []
    allow_origins: list[str] = []
    expose_headers: list[str] = []
    max_age: int = 0
    """Seconds that a browser may remember an answer to a preflight."""

    def check(self) -> None:
        """All of it comes to stand in headers of answers. Raises: BadRequest."""
        rules = (
            ("AllowOrigins", self.allow_origins, _ORIGIN, "origins such as https://example.com, or *"),
            ("AllowMethods", self.allow_methods, _METHOD, "methods in upper case, or *"),
            ("AllowHeaders", self.allow_headers, _TOKEN, "names of headers, or *"),
            ("ExposeHeaders", self.expose_headers, _TOKEN, "names of headers, or *"),
        )
        for key, values, pattern, what in rules:
            if len(values) > LISTED or not all(pattern.fullmatch(value) for value in values):
                raise BadRequest(f"Cors.{key} must be at most {LISTED} {what}")
        if not 0 <= self.max_age <= MAX_AGE_S:
            raise BadRequest(f"Cors.MaxAge must be 0 to {MAX_AGE_S} seconds")


class FunctionUrl(msgspec.Struct, frozen=True):
    """One URL."""

    id: str
    name: str
    """The function."""
    qualifier: str
    """An alias of it; empty: what was deployed last."""
    auth: Auth
    mode: Mode
    cors: Cors | None
    """None: preflights are the function's own business."""
    created_at: float
    """Unix time."""
    updated_at: float

    def check(self) -> None:
        """Raises: BadRequest."""
        if self.auth not in AUTHS:
            raise BadRequest(f"AuthType must be one of {', '.join(AUTHS)}")
        if self.mode not in MODES:
            raise BadRequest(f"InvokeMode must be one of {', '.join(MODES)}")
        if self.cors is not None:
            self.cors.check()
