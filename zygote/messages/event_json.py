"""JSON of events and answers, as AWS's runtime reads and writes it.

An event has no NaN, and may begin with a byte order mark. In an answer NaN and Infinity are written as JavaScript names them, and
bytes are text in UTF-8.
"""

from __future__ import annotations

import json
import sys

from sockd_zygote.messages.errors import InvalidEvent, MarshalError

BYTE_ORDER_MARK = "\ufeff"


def refuse_constant(name: str) -> object:
    """For the decoder, which would take it. Raises: ValueError."""
    raise ValueError(f"{name} is not JSON")


def text_of(value: object) -> str:
    """The text of bytes within an answer. Raises: TypeError, for any other value that JSON does not have; UnicodeDecodeError."""
    if isinstance(value, bytes):
        return str(value, "utf-8")
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


decode = json.JSONDecoder(parse_constant=refuse_constant).decode
# What is below json's own functions, made once: they match patterns and make an encoder for each call.
scan = json.JSONDecoder(parse_constant=refuse_constant).scan_once  # type: ignore[attr-defined]
markers: dict[int, object] = {}
encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    markers, text_of, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True
)
"""(answer, 0) -> strings; `markers` are the containers that it is in."""


def parse_event(event: bytes) -> object:
    try:
        text = str(event, "utf-8")
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError):
            pass
        # There is space around it, or it is wrong: this one says where.
        return decode(text.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"Could not parse request body into json: {error}") from None


def encode_answer(answer: object) -> bytes:
    try:
        text: str = "".join(encode(answer, 0))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        markers.clear()  # it was left in the middle of a container
        if type(error) is TypeError and ("decimal" in sys.modules or "not bytes" in str(error)):
            from sockd_zygote.messages import rare_answers

            encoded = rare_answers.encode(answer, text_of)
            if encoded is not None:
                return encoded
        raise MarshalError(f"Unable to marshal response: {error}") from None
