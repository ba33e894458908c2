"""IgnorePattern: one pattern of a `.gitignore`, matched as git matches it (gitignore(5), git's wildmatch.c).

A pattern decides about one file or directory, never about what is in a directory: git asks about each directory first, and does
not enter an ignored one. Libraries that match whole paths answer for the descendants, too, and so differ after a `!pattern`.
Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WITHOUT_BLANKS = re.compile(r"((?:\\.|[^\\])*?) *", re.DOTALL)
"""A line up to its blanks at the end; one with a backslash before it belongs to the pattern."""
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
"""The character classes of POSIX, as members of a set of `re`."""
_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One line of an ignore file that is neither blank nor a comment."""

    includes: bool
    """Whether the line begins with `!`: what it matches is not ignored."""
    only_directories: bool
    whole_path: bool
    """Whether the path below the file's directory is matched, else the last part of it."""
    regex: re.Pattern[str]

    def matches(self, path: str) -> bool:
        """Whether a file or directory is meant. Args: path: of a directory, with a slash at its end."""
        if self.only_directories and not path.endswith("/"):
            return False
        path = path.removesuffix("/")
        return bool(self.regex.fullmatch(path if self.whole_path else path.rpartition("/")[2]))


def parse(line: str) -> IgnorePattern | None:
    """Parse a line of an ignore file; None for a blank one or a comment."""
    trimmed = _WITHOUT_BLANKS.fullmatch(line)
    line = trimmed[1] if trimmed else line
    if not line or line.startswith("#"):
        return None
    includes = line.startswith("!")
    text = line.removeprefix("!")
    only_directories = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    whole_path = "/" in text
    regex = _regex(text.removeprefix("/"))
    return IgnorePattern(includes, only_directories, whole_path, regex)


def _regex(text: str) -> re.Pattern[str]:
    """Translate a pattern. One that is not closed matches nothing, as in git."""
    made, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "*":
            piece, at = _stars(text, at)
        elif char == "[":
            piece, at = _set(text, at)
        elif char == "?":
            piece, at = "[^/]", at + 1
        elif char == "\\":
            piece, at = re.escape(text[at + 1 : at + 2]), at + 2
            if at > len(text):  # a backslash at the end
                piece = ""
        else:
            piece, at = re.escape(char), at + 1
        if not piece:
            return _NEVER
        made += piece
    return re.compile(made, re.DOTALL)


def _stars(text: str, at: int) -> tuple[str, int]:
    """Translate the stars at a place; they match slashes only as a whole part. Returns: with the place behind them."""
    end = at
    while text[end : end + 1] == "*":
        end += 1
    is_part = (at == 0 or text[at - 1] == "/") and (end == len(text) or text[end] == "/")
    if end - at < 2 or not is_part:
        return "[^/]*", end
    if end == len(text):
        return ".*" if at == 0 else ".+", end
    return "(?:.*/)?", end + 1


def _set(text: str, at: int) -> tuple[str, int]:
    """Translate the set of characters at a place. Returns: with the place behind it; an empty text if it is not closed."""
    end = at + 1
    is_negated = text[end : end + 1] in ("!", "^") and end < len(text)
    end += is_negated
    members, first = "", True
    while end < len(text) and (first or text[end] != "]"):
        first = False
        if text.startswith("[:", end) and (close := text.find(":]", end)) > 0:
            known = _CLASSES.get(text[end + 2 : close])
            if known is None:
                return "", end
            members, end = members + known, close + 2
            continue
        low, end = _member(text, end)
        if text[end : end + 1] == "-" and text[end + 1 : end + 2] not in ("]", ""):
            high, end = _member(text, end + 1)
            if low <= high:
                members += f"{re.escape(low)}-{re.escape(high)}"
        members += re.escape(low)  # also of a range that ends before it begins, as in git
    if end >= len(text):
        return "", end
    if is_negated:
        return f"[^/{members}]", end + 1
    return f"(?!/)[{members}]" if members else "(?!)", end + 1


def _member(text: str, at: int) -> tuple[str, int]:
    if text[at] == "\\" and at + 1 < len(text):
        return text[at + 1], at + 2
    return text[at], at + 1
