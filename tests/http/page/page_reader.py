"""What a browser sees of a page, and texts that must not become markup in it."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE functions; --",
    "\x1b]8;;http://evil\x07\x00\x1b[2J",
    "</pre></section><style>*{display:none}</style>",
    "{{ 7 * 7 }}{% raw %}",
    "data: event\n\nevent: functions\ndata: <b>",
    "\u202etxt.exe",
    "\ud800",
    "&lt;b&gt;",
)


class Reader(HTMLParser):
    """What a browser sees: the tags with their attributes' names, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader
