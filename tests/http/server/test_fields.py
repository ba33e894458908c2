"""Header fields: no text ends a line, and no line is made elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.base.errors import MethodNotAllowed, SockdError
from sockd.http.aws.errors import refusal as aws_refusal
from sockd.http.server.messages.answers import failure
from sockd.http.server.messages.fields import field, raw_field
from sockd.http.urls.refusals import refusal as url_refusal

HTTP = Path(__file__).parents[3] / "sockd" / "http"
EVIL = "a\r\nX-Evil: 1\n\x00\x7f\u2028\N{SNOWMAN}b"
OURS = {
    *(
        "request_id",
        "text_id",
        "event_id",
        "length",
        "status",
        "line",
        "body",
        "len",
        "fields",
        "cold",
        "COLD",
        "trace",
    ),
    *(
        "end",
        "_JSON",
        "CONTENT_TYPE",
        "now",
        "accepted",
        "self",
        "answer",
        "invocation",
        "executed",
        "HTTPStatus",
        "signature",
        "chr",
        "formatdate",
        "kind",
        "lines",
    ),
}
"""What heads are made of besides: ids, lengths and dates of our own, lines that are made already."""


def test_what_cannot_stand_in_a_line_is_written_as_a_question_mark() -> None:
    assert field("allow", EVIL) == "allow: a??X-Evil: 1?????b\r\n"
    assert field("na\r\nme", "v\tw é") == "na??me: v\tw é\r\n"
    assert raw_field(b"", b"\xff\n") == "?: \xff?\r\n"


class Claimed(SockdError):
    """An error whose type is a function's word."""

    error_type = EVIL
    status = 418


@pytest.mark.parametrize("error", [MethodNotAllowed("PUT", EVIL), Claimed("no")])
@pytest.mark.parametrize("refused", [failure, aws_refusal, url_refusal])
def test_no_error_splits_the_head_of_its_answer(error: SockdError, refused: object) -> None:
    fields = refused(error, "id").fields  # type: ignore[operator]
    fields.encode("latin-1")
    assert "x-evil" not in {line.partition(":")[0].lower() for line in fields.split("\r\n")}
    assert all(line.isprintable() for line in fields.split("\r\n"))


def interpolated() -> Iterator[tuple[str, str]]:
    """Iterate over the f-strings that end a line of a head: where each is, and the names that it puts in."""
    for file in sorted(HTTP.rglob("*.py")):
        if file.name == "fields.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            ends = any(isinstance(part, ast.Constant) and "\r\n" in str(part.value) for part in node.values)
            for part in node.values:
                if ends and isinstance(part, ast.FormattedValue):
                    first = next(each for each in ast.walk(part.value) if isinstance(each, ast.Name))
                    yield f"{file.relative_to(HTTP)}:{part.lineno}", first.id


def test_every_line_of_a_head_that_is_no_constant_is_made_in_one_place() -> None:
    found = list(interpolated())
    assert len(found) > 10
    assert [(where, name) for where, name in found if name not in OURS] == []
