"""What goes wrong in a sandbox, in AWS's words: the errors that are not the user's own, and how any of them is told."""

from __future__ import annotations

import json
import os
import sys

from zygote.protocol import FAILED_MAX_BYTES

MAX_NAMES = 100
MAX_STACK = 50
"""Frames of a stack that are told, the innermost."""
MAX_LINE = 1000
"""Characters of one of them."""
MESSAGE_BYTES = FAILED_MAX_BYTES // 2
"""Longest text of an error, as JSON; the stack has what the text leaves of a frame."""
CUT = " [cut: %d more characters]"
LEFT_OUT = "  [left out: %d frames]\n"


class HandlerNotFound(Exception):
    """The entry point names a module or an attribute that is not there, or that cannot be called."""


class MarshalError(Exception):
    """The handler returned something that JSON cannot hold."""


class InvalidEvent(Exception):
    """The request's payload is not JSON."""


class ReportedError(Exception):
    """An error in the words of somebody else: a program behind the Runtime API."""

    def __init__(self, kind: str, message: str, stack: list[str]) -> None:
        super().__init__(message)
        self.kind = kind
        self.stack = stack


ERROR_TYPES: dict[type[BaseException], str] = {
    HandlerNotFound: "Runtime.HandlerNotFound",
    MarshalError: "Runtime.MarshalError",
    InvalidEvent: "InvalidRequestContentException",
}
"""AWS's names for what is not the user's own exception."""


def describe(error: BaseException) -> bytes:
    """An exception as AWS's error JSON: {errorMessage, errorType, stackTrace}, without the frames of this runtime."""
    import traceback

    if isinstance(error, ReportedError):
        return encode(error.kind, str(error), error.stack)
    runtime = (os.path.dirname(__file__) + "/", "<frozen importlib")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(runtime)]
    try:
        message = str(error)
    except Exception as failure:  # the user's own __str__
        message = f"<the error's text cannot be made: {type(failure).__name__}>"
    if isinstance(error, ModuleNotFoundError):
        message += f" ({installed()})"
    return encode(ERROR_TYPES.get(type(error), type(error).__name__), message, traceback.format_list(frames))


def encode(kind: str, message: str, stack: list[str]) -> bytes:
    """AWS's error JSON, cut to FAILED_MAX_BYTES with a mark where something is missing."""
    answer = {"errorMessage": cut(message), "errorType": kind[:200], "stackTrace": []}
    room = FAILED_MAX_BYTES - len(json.dumps(answer)) - len(LEFT_OUT) - 20
    kept: list[str] = []
    for line in reversed(stack[-MAX_STACK:]):  # where it was raised comes last, and is never left out first
        line = line[:MAX_LINE]
        room -= len(json.dumps(line)) + 2
        if room < 0:
            break
        kept.append(line)
    if len(kept) < len(stack):
        kept.append(LEFT_OUT % (len(stack) - len(kept)))
    answer["stackTrace"] = kept[::-1]
    return json.dumps(answer).encode()


def cut(text: str) -> str:
    """A text whose JSON has MESSAGE_BYTES at most."""
    kept = text[:MESSAGE_BYTES]
    while len(json.dumps(kept)) > MESSAGE_BYTES - len(CUT) - 20:
        kept = kept[: len(kept) * 3 // 4]
    return text if kept == text else kept + CUT % (len(text) - len(kept))


def installed() -> str:
    """Which packages this function has, for whoever misses one."""
    paths = [path.split("/") for path in sys.path if isinstance(path, str) and path.startswith("/packages/")]
    names = sorted({path[2].rpartition("-")[0] for path in paths})[:MAX_NAMES]
    return f"installed: {', '.join(names)}" if names else "no packages: requirements.txt names none"
