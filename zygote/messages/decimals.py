"""JSON of answers that hold a `Decimal`: a number with all of its digits, as AWS's runtime writes it.

Imported for those alone. json's encoder has no way to write a number that is not an int or a float: it writes a string with a
mark, which is then taken off.
"""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal


def encode(answer: object) -> bytes | None:
    """The answer's JSON; None: it cannot be told, or no Decimal is in it."""
    mark = os.urandom(16).hex()
    found = False

    def default(value: object) -> object:
        nonlocal found
        if not isinstance(value, Decimal):
            raise TypeError
        found = True
        return mark + str(value) if value.is_finite() else float(value)

    try:
        text = json.dumps(answer, default=default, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return re.sub(f'"{mark}([^"]*)"', r"\1", text).encode() if found else None
