"""Text of strangers as a terminal may have it: the one sanitizer of what clients, commands and the daemon's log print. Pure."""

from __future__ import annotations

_KEPT = "\n\t"
_OBEYED = (
    *range(0x20),  # C0
    *range(0x7F, 0xA0),  # DEL, C1
    *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # turn the direction of text around
    *(0x2028, 0x2029),  # end a line in some viewers
)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _OBEYED if chr(code) not in _KEPT}


def printable(text: str) -> str:
    """A text that changes nothing in a terminal but what it shows: control characters are escaped, lines stay lines.

    Half surrogate pairs, which no encoding of a terminal has, are escaped, too."""
    text = text.replace("\r\n", "\n").translate(_ESCAPES)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def unix_lines(text: str) -> str:
    """What a function printed, each line ended by a line feed.

    awslambdaric ends the lines of an error by a carriage return alone: AWS keeps them in one record, and shows them as lines."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def one_line(text: str) -> str:
    """`printable`, in one line."""
    return printable(text).replace("\n", "\\n")
