"""Ranges and preconditions: If-Match, If-None-Match, If-(Un)Modified-Since, Range (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Object

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def check_preconditions(headers: Mapping[str, str], found: Object, *, prefix: str = "") -> bool:
    """Whether the client has no need of the object (304).

    Args:
        prefix: of the headers' names (`x-amz-copy-source-`).

    Raises: S3Error (PreconditionFailed)."""
    if_match, if_none_match = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-none-match")
    modified_s = int(found.modified_s)
    if if_match is not None:
        if not matches(if_match, found.etag):
            raise _failed("If-Match")
    elif (since := _seconds(headers.get(f"{prefix}if-unmodified-since"))) is not None and modified_s > since:
        raise _failed("If-Unmodified-Since")
    if if_none_match is not None:
        return matches(if_none_match, found.etag)
    since = _seconds(headers.get(f"{prefix}if-modified-since"))
    return since is not None and modified_s <= since


def check_write(headers: Mapping[str, str], old: Object | None) -> None:
    """Raises S3Error when the conditions of a PUT do not hold for what is there now."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if if_match is not None:
        if old is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.")
        if not matches(if_match, old.etag):
            raise _failed("If-Match")
    if if_none_match is not None:
        if if_none_match != "*":
            raise S3Error("NotImplemented", "If-None-Match of a PUT is * or absent.")
        if old is not None:
            raise _failed("If-None-Match")


def matches(condition: str, etag: str) -> bool:
    tags = [part.strip().removeprefix("W/").strip('"') for part in condition.split(",")]
    return "*" in tags or etag.strip('"') in tags


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """(first byte, length) of a range; None when there is none, or none that is understood: the whole is sent then.

    Raises: S3Error (InvalidRange)."""
    found = _RANGE.fullmatch(text.strip()) if text else None
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size or (not first and not int(last)):
        raise S3Error(
            "InvalidRange", "The requested range is not satisfiable", headers=[("Content-Range", f"bytes */{size}")]
        )
    return start, end - start + 1


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, OverflowError):
        return None  # a date that cannot be read is as none (RFC 9110, 13.1.3)


def _failed(condition: str) -> S3Error:
    return S3Error("PreconditionFailed", f"At least one of the pre-conditions you specified did not hold: {condition}")
