"""AWS's layouts for what a function logs: tabs between [LEVEL], time, request id and message, or an object of JSON in each line.

As text, imported only where the function, or a package of it, has imported `logging`: a root logger that has a handler of the
function's own keeps it; one that has none, or only what `basicConfig` makes without a format, gets AWS's layout. As JSON
(`log_format = "json"`), the root logger has it before the function is imported, with the level that its settings name.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from json import dumps  # functions may replace json's

from sockd_zygote.messages import current_request
from sockd_zygote.messages.errors import place_and_notes, related

LAYOUT = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"
MOMENT = "%Y-%m-%dT%H:%M:%S"
LEVELS = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}
"""AWS's names of levels by those of `logging`; the others are the same."""
OWN_FIELDS = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "aws_request_id"})
"""The fields of a record; any other is an `extra` of the function's, and a member of the object."""


class Formatter(logging.Formatter):
    """As awslambdaric's, for text."""

    converter = time.gmtime  # type: ignore[assignment]  # typeshed knows localtime's signature alone

    def __init__(self) -> None:
        super().__init__(LAYOUT, MOMENT)

    def format(self, record: logging.LogRecord) -> str:
        record.aws_request_id = request_id()
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """As awslambdaric's, for JSON: a line is an object, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = int(record.created * 1000) % 1000
        fields: dict[str, object] = {
            "timestamp": f"{time.strftime(MOMENT, time.gmtime(record.created))}.{milliseconds:03}Z",
            "level": record.levelname,
            "message": message_of(record),
            "logger": record.name,
            "requestId": request_id(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, frames = record.exc_info
            whole = traceback.TracebackException(kind, error, frames)
            place, notes = place_and_notes(whole)
            lines, root = related(whole)
            fields["stackTrace"] = [*whole.stack.format(), *place, *notes, *lines, *root]
            fields["errorType"], fields["errorMessage"] = kind.__name__, str(error)
            fields["location"] = f"{record.pathname}:{record.funcName}:{record.lineno}"
        extra = {name: value for name, value in record.__dict__.items() if name not in OWN_FIELDS}
        try:
            return dumps({**extra, **fields}, ensure_ascii=False, default=str, allow_nan=False)
        except Exception:  # the values are the function's: NaN, keys that are tuples, a list in itself, any __str__
            extra = {name: encodable(value) for name, value in extra.items()}
            return dumps({**extra, **fields}, ensure_ascii=False)


def message_of(record: logging.LogRecord) -> str:
    """Its message, also where its arguments are not those that the message asks for."""
    try:
        return record.getMessage()
    except Exception as error:  # the values are the function's, with any __str__ and __format__
        return f"{text_of(record.msg)} [its arguments do not fit: {type(error).__name__}: {text_of(error)}]"


def encodable(value: object) -> object:
    """The value as JSON has it, or its text."""
    try:
        return json.loads(dumps(value, default=str, allow_nan=False))
    except Exception:
        return text_of(value)


def text_of(value: object) -> str:
    """Its text, also where that cannot be made."""
    try:
        return str(value)
    except Exception as error:
        return f"<its text cannot be made: {type(error).__name__}>"


def request_id() -> str:
    """Return the id of the request that is answered, or of the last one."""
    digits = current_request.number.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


HANDLER = logging.StreamHandler()
"""Made where this module is imported: in a Zygote whose packages have imported `logging`."""
HANDLER.setFormatter(Formatter())


def apply() -> None:
    """Give the root logger AWS's layout, unless the function has chosen another."""
    root = logging.getLogger()
    if not root.handlers:
        HANDLER.stream = sys.stderr
        root.addHandler(HANDLER)
        return
    if len(root.handlers) > 1 or not is_default(root.handlers[0]):
        return
    root.handlers[0].setFormatter(HANDLER.formatter)


def apply_json() -> None:
    """Give the root logger a handler for JSON and its level; a Zygote's import may have given it one already."""
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root.handlers[:] = [handler, *(each for each in root.handlers if not is_default(each))]
    level = os.environ.get("AWS_LAMBDA_LOG_LEVEL", "INFO")
    root.setLevel(LEVELS.get(level, level))


def is_default(handler: logging.Handler) -> bool:
    """Whether `basicConfig` has made it, and how its lines are to look was not said."""
    layout = getattr(handler.formatter, "_fmt", None)
    return type(handler) is logging.StreamHandler and layout == logging.BASIC_FORMAT
