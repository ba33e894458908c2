"""Header fields as they are written: the one place that makes lines of heads out of texts that are not constants.

Pure. Whatever a text holds, it ends no line and begins no other. Settings, errors and functions' answers are checked where
they come in; here their texts are made harmless once more. tests/http/server/test_fields.py finds lines that are made elsewhere.
"""

from __future__ import annotations

import re

_NOT_IN_A_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
"""RFC 9110, 5.5: no CR, LF, NUL or other control; beyond ASCII, bytes as latin-1."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]")


def field(name: str, value: object) -> str:
    """One line. What cannot stand in it is written as `?`."""
    return f"{_NOT_IN_A_NAME.sub('?', name) or '?'}: {_NOT_IN_A_VALUE.sub('?', str(value))}\r\n"


def raw_field(name: bytes, value: bytes) -> str:
    """One line, of bytes."""
    return field(name.decode("latin-1"), value.decode("latin-1"))
