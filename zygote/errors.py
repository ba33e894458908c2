"""What goes wrong in a sandbox, in AWS's words: the errors that are not the user's own, and how any of them is told."""

from __future__ import annotations

import json
import os
import sys

MAX_NAMES = 100
MAX_ERROR_TEXT = 64 * 1024
"""Characters of an error's text that are told: with its stack it fits into a frame, however JSON spells it."""


class HandlerNotFound(Exception):
    """The entry point names a module or an attribute that is not there, or that cannot be called."""


class MarshalError(Exception):
    """The handler returned something that JSON cannot hold."""


class InvalidEvent(Exception):
    """The request's payload is not JSON."""


class Told(Exception):
    """An error in the words of somebody else: a program behind the Runtime API."""

    def __init__(self, kind: str, message: str, stack: list[str]) -> None:
        super().__init__(message)
        self.answer = {"errorMessage": message, "errorType": kind, "stackTrace": stack}


ERROR_TYPES: dict[type[BaseException], str] = {
    HandlerNotFound: "Runtime.HandlerNotFound",
    MarshalError: "Runtime.MarshalError",
    InvalidEvent: "InvalidRequestContentException",
}
"""AWS's names for what is not the user's own exception."""


def describe(error: BaseException) -> bytes:
    """An exception as AWS's error JSON: {errorMessage, errorType, stackTrace}, without the frames of this runtime."""
    import traceback

    if isinstance(error, Told):
        return json.dumps(error.answer).encode()
    runtime = (os.path.dirname(__file__) + "/", "<frozen importlib")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(runtime)]
    try:
        message = str(error)
    except Exception as failure:  # the user's own __str__
        message = f"<the error's text cannot be made: {type(failure).__name__}>"
    if isinstance(error, ModuleNotFoundError):
        message += f" ({installed()})"
    answer = {
        "errorMessage": message[:MAX_ERROR_TEXT],
        "errorType": ERROR_TYPES.get(type(error), type(error).__name__[:200]),
        "stackTrace": [line[:1000] for line in traceback.format_list(frames[-50:])],
    }
    return json.dumps(answer).encode(errors="backslashreplace")


def installed() -> str:
    """Which packages this function has, for whoever misses one."""
    paths = [path.split("/") for path in sys.path if isinstance(path, str) and path.startswith("/packages/")]
    names = sorted({path[2].rpartition("-")[0] for path in paths})[:MAX_NAMES]
    return f"installed: {', '.join(names)}" if names else "no packages: requirements.txt names none"
