"""TOML that strangers wrote, read within limits: a bounded number of parts of a key, and one kind of error.

Pure. `tomllib` is quadratic in the parts of a dotted key (7900 parts: two seconds) and lets Python's own errors through.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 16
"""The most parts of a dotted key; the deepest of ours has two."""
MOST_DIGITS = 100
"""The most digits of a number."""
_TOKENS = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''.*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*"
    r"|(?P<end>[\n=,\[\]{}])"
    r"|(?P<dot>\.)"
    r"|(?P<word>[A-Za-z0-9_+-]+)"
    r"|.",
    re.DOTALL,
)
"""Strings and comments as wholes, so that a dot in them is none."""


class BadToml(ValueError):
    """The text is not TOML, or goes beyond the limits; the message says where."""


def loads(text: str) -> dict[str, Any]:
    """The table of a file. Takes milliseconds for 16 KB: not on the event loop. Raises: BadToml."""
    _check(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadToml("nested too deeply") from None
    except (ValueError, OverflowError) as error:  # TOMLDecodeError is one; dates and long numbers raise others
        raise BadToml(str(error)[:300]) from None


def _check(text: str) -> None:
    """Raises: BadToml."""
    parts, line = 1, 1
    for token in _TOKENS.finditer(text):
        kind = token.lastgroup
        if kind == "dot":
            parts += 1
            if parts > MOST_PARTS:
                raise BadToml(f"line {line}: a key of more than {MOST_PARTS} parts")
        elif kind == "end":
            parts = 1
        elif kind == "word" and token.end() - token.start() > MOST_DIGITS and token[0].lstrip("+-")[:1].isdigit():
            raise BadToml(f"line {line}: a number of more than {MOST_DIGITS} digits")
        line += token[0].count("\n")
