"""JSON of answers with a `Decimal` or a key that is bytes: AWS's runtime writes a number with all of its digits, and text.

Imported for those alone. json's encoder has no way to write a number that is not an int or a float: it writes a string with a
mark, which is then taken off.
"""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal


def encode(answer: object, default: object) -> bytes | None:
    """The answer's JSON; None: it cannot be encoded, or nothing rare is in it.

    Args: default: makes text of other values that JSON does not have, or raises TypeError."""
    mark = os.urandom(16).hex()
    found = False

    def rare(value: object) -> object:
        nonlocal found
        if not isinstance(value, Decimal):
            return default(value)  # type: ignore[operator]
        found = True
        return mark + str(value) if value.is_finite() else float(value)

    try:
        named = with_text_keys(answer)
        text = json.dumps(named, default=rare, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
    return re.sub(f'"{mark}([^"]*)"', r"\1", text).encode() if found or named is not answer else None


def with_text_keys(value: object) -> object:
    """The value with text for keys that are bytes; itself if there are none. Raises: UnicodeDecodeError, RecursionError."""
    if isinstance(value, dict):
        named = {
            str(key, "utf-8") if isinstance(key, bytes) else key: with_text_keys(each) for key, each in value.items()
        }
        return value if all(map(is_same, named.items(), value.items())) else named
    if isinstance(value, (list, tuple)):
        items = [with_text_keys(each) for each in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def is_same(new: tuple[object, object], old: tuple[object, object]) -> bool:
    """Whether an item of a mapping is the one that it was."""
    return new[0] is old[0] and new[1] is old[1]
