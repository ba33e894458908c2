"""An answer before it is sent: status, headers, and bytes or a piece of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from benchmarks.s3.xml import Markup, document

Headers = list[tuple[str, str]]
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class FileSlice:
    """A piece of an open file. Owns the file descriptor."""

    fd: int
    offset: int
    length: int

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True)
class Answer:
    """One answer; `close` gives back what it holds."""

    status: int = 200
    headers: Headers = field(default_factory=list)
    body: bytes | FileSlice = b""
    code: str = ""
    """The error's name, if it is one."""
    without_body: bool = False
    """Whether this answers a HEAD: the length is sent, the body is not."""

    @property
    def length(self) -> int:
        return self.body.length if isinstance(self.body, FileSlice) else len(self.body)

    def close(self) -> None:
        if isinstance(self.body, FileSlice):
            self.body.close()

    def head(self, length: int, more: Sequence[tuple[str, str]]) -> bytes:
        """The bytes in front of the body."""
        lines = [f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"{name}: {value}" for name, value in more]
        if self.status not in (204, 304):
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def xml_answer(root: Markup, status: int = 200) -> Answer:
    return Answer(status, [("Content-Type", "application/xml")], document(root))
