"""JSON of events and answers, as AWS's runtime reads and writes it."""

from __future__ import annotations

import json
import sys

from sockd_zygote.messages.errors import InvalidEvent, MarshalError

decode = json.JSONDecoder().decode
# What is below json's own functions, made once: they match patterns and make an encoder for each call.
scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
markers: dict[int, object] = {}
encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    markers, json.JSONEncoder().default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)
"""(answer, 0) -> strings; `markers` are the containers that it is in. No NaN."""


def parse_event(event: bytes) -> object:
    try:
        text = str(event, "utf-8")
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError):
            pass
        return decode(text)  # there is space around it, or it is wrong: this one says where
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"Could not parse request body into json: {error}") from None


def encode_answer(answer: object) -> bytes:
    try:
        text: str = "".join(encode(answer, 0))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        markers.clear()  # it was left in the middle of a container
        if type(error) is TypeError and "decimal" in sys.modules:
            from sockd_zygote.messages import decimals

            with_decimals = decimals.encode(answer)
            if with_decimals is not None:
                return with_decimals
        raise MarshalError(f"Unable to marshal response: {error}") from None
