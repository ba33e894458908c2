"""Formatting of numbers and texts for the page. Pure.

Strangers' text (logs, error names) is made printable here: what a terminal would obey, and what would reorder or hide
letters, is shown as a sign. That it cannot become markup is the templates' affair, which escape everything.
"""

from __future__ import annotations

import re
import time

from sockd.base.printable import unix_lines
from sockd.base.spelling import size

COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Everything that is no letter of its own, but for line feeds and tabs: C0, DEL, C1, zero-width and direction marks, halves
of surrogate pairs."""
NOTHING = "–"


def printable(text: str) -> str:
    """A stranger's text with nothing in it that acts: colours are dropped, other controls are shown."""
    return CONTROLS.sub(_sign, COLOURS.sub("", text.replace("\r\n", "\n")))


def _sign(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x20:
        return chr(0x2400 + number)  # ␀ to ␟
    return "␡" if number == 0x7F else f"\\u{number:04x}"


def log_text(raw: bytes, limit: int) -> str:
    """The end of what was printed, as text. Args: limit: most bytes."""
    text = printable(unix_lines(raw[-limit:].decode("utf-8", "backslashreplace")))
    return f"… {size(len(raw) - limit)} before this: sockd logs\n{text}" if len(raw) > limit else text


def ms(ns: float) -> str:
    """A duration in ms, without its unit: 0.21, 4.2, 38, 1 204."""
    value = ns / 1e6
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 20 else grouped(round(value))


def tick(ns: int) -> str:
    """A mark of a time axis in ms, without digits that say nothing: 0, 0.05, 2.5, 1 500."""
    value = ns / 1e6
    return grouped(round(value)) if value >= 100 else f"{value:.6f}".rstrip("0").rstrip(".")


def grouped(number: int) -> str:
    """A whole number with thin gaps between its thousands."""
    return f"{number:,}".replace(",", "\u202f")


def rate(per_second: float) -> str:
    """Events per second."""
    if per_second <= 0:
        return "0"
    if per_second < 0.1:
        return "<0.1"
    return f"{per_second:.1f}" if per_second < 10 else grouped(round(per_second))


def first_line(text: str, limit: int) -> str:
    """The beginning of a text, as far as its first line goes. Args: limit: most characters."""
    line = text.lstrip().partition("\n")[0]
    return f"{line[:limit]}…" if len(line) > limit else line


def percent(share: float) -> str:
    """A share of 1 as a percentage. A share that is almost 0 or 1 is not rounded to it."""
    if 0 < share < 0.01:
        return "<1\u202f%"
    if 0.99 < share < 1:
        return ">99\u202f%"
    return f"{share * 100:.0f}\u202f%"


def clock(unix_s: float) -> str:
    """The time of day, in the worker's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def when(unix_s: float, now_s: float | None = None) -> str:
    """The time of day, with its date unless that is today's."""
    moment, today = time.localtime(unix_s), time.localtime(now_s)
    return time.strftime("%H:%M:%S" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M", moment)


def stamp(unix_s: float) -> str:
    """The same moment for machines (ISO 8601)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(unix_s))


def day(unix_s: float) -> str:
    """A date and the time, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def many(count: int, noun: str) -> str:
    """`1 function`, `2 functions`."""
    return f"{grouped(count)} {noun}{'' if count == 1 else 's'}"
