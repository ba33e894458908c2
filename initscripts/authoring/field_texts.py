"""Texts as an event's fields give them: where the parts of a recorded bucket, key or prefix came from.

Pure. A text is read once and has to be explained: which fields stood for which of its parts, and what was constant. That
is a guess, and the developer reads it; the storage library compares every guess with what is asked for, so a wrong one
costs the time it was to save and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

FIELDS_LIMIT = 10_000
"""The most fields of an event; what is behind them is not looked at."""
SHORT_CHARACTERS = 2


@dataclass(frozen=True, slots=True)
class Field:
    """The string or integer at a path of the event, or of an element of one of its arrays."""

    path: tuple[str | int, ...]
    unquoted: bool = False
    """Whether urllib.parse.unquote_plus was applied."""
    of_element: bool = False
    """Whether the path begins at the element that a loop is at."""


@dataclass(frozen=True, slots=True)
class Literal:
    """What no field holds."""

    text: str


Text = tuple[Field | Literal, ...]
"""The parts, in their order; no literal follows another."""


class Fields:
    """The fields of one event that a text may be made of."""

    def __init__(self, event: object) -> None:
        self._values: list[tuple[Field, str]] = []
        for path, value in _leaves(event):
            if len(self._values) >= FIELDS_LIMIT:
                break
            if not value:
                continue
            self._values.append((Field(path), value))
            plain = unquote_plus(value)
            if plain != value:
                self._values.append((Field(path, unquoted=True), plain))

    def equal_to(self, field: Field) -> list[Field]:
        """The other fields that hold the same: any of them may be the one that was meant."""
        value = next(value for other, value in self._values if other == field)
        return [other for other, same in self._values if same == value and other.path != field.path]

    def explain(self, text: str) -> Text:
        """The parts of a text.

        POLICY: as much of it as possible comes from fields, then from as few parts as possible, then from the fields that
        are first in the event. A field counts only where no letter or digit touches it, and one of two characters or
        fewer only as a whole component between slashes: anything else would be found by chance."""
        found = [(field, value) for field, value in self._values if value in text]
        best: list[tuple[int, int, Text]] = [(0, 0, ())]
        """For each length, the best explanation of that much of the text: characters from fields, -parts, the parts."""
        for end in range(1, len(text) + 1):
            characters, parts, before = best[end - 1]
            if before and isinstance(before[-1], Literal):
                choice = (characters, parts, (*before[:-1], Literal(before[-1].text + text[end - 1])))
            else:
                choice = (characters, parts - 1, (*before, Literal(text[end - 1])))
            for field, value in found:
                begin = end - len(value)
                if begin < 0 or not text.startswith(value, begin) or not _stands_alone(text, begin, end):
                    continue
                characters, parts, before = best[begin]
                if (characters + len(value), parts - 1) > choice[:2]:
                    choice = (characters + len(value), parts - 1, (*before, field))
            best.append(choice)
        return best[-1][2]


def is_text(text: str) -> bool:
    """Whether it is UTF-8: JSON can also spell halves of characters, which are in no key."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_constant(text: Text) -> bool:
    """Whether no field is in it."""
    return not any(isinstance(part, Field) for part in text)


def comes_from_fields(text: Text) -> bool:
    """Whether all but separators are fields."""
    return not any(isinstance(part, Literal) and any(map(str.isalnum, part.text)) for part in text)


def element_of(text: Text, array: tuple[str | int, ...], index: int) -> Text:
    """A text with the fields of one element of an array named relative to the element."""
    prefix = (*array, index)
    return tuple(
        Field(part.path[len(prefix) :], part.unquoted, of_element=True)
        if isinstance(part, Field) and part.path[: len(prefix)] == prefix
        else part
        for part in text
    )


def arrays_of(texts: Sequence[Text]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """The arrays, with the index, that the fields of these texts are elements of, or within an element of."""
    for text in texts:
        for part in text:
            if isinstance(part, Field):
                yield from ((part.path[:at], step) for at, step in enumerate(part.path) if isinstance(step, int))


def value_at(event: Any, path: tuple[str | int, ...]) -> Any:
    """What an event holds at a path that was found in it."""
    for step in path:
        event = event[step]
    return event


def _leaves(event: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The strings and integers of an event that a path of the SDKs can name, in their order."""
    stack: list[tuple[tuple[str | int, ...], object]] = [((), event)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            named = [(name, inner) for name, inner in value.items() if name and "\0" not in name and is_text(name)]
            stack.extend(((*path, name), inner) for name, inner in reversed(named))
        elif isinstance(value, list):
            stack.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
        elif (isinstance(value, str) and is_text(value)) or type(value) is int:
            yield path, str(value)


def _stands_alone(text: str, begin: int, end: int) -> bool:
    before, behind = text[begin - 1 : begin], text[end : end + 1]
    if end - begin <= SHORT_CHARACTERS:
        return before in ("", "/") and behind in ("", "/")
    return not (before.isalnum() and text[begin].isalnum()) and not (behind.isalnum() and text[end - 1].isalnum())
