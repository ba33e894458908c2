"""What goes wrong in a sandbox, in AWS's words: the errors that are not the user's own, and the form in which any of them is
sent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from json import dumps  # functions may replace json's

from sockd_zygote.messages import suggestions
from sockd_zygote.messages.own_traceback import OwnModules, TracebackException, extract_tb, format_list
from sockd_zygote.protocol import FAILED_MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceback import FrameSummary

OURS = (os.path.dirname(os.path.dirname(__file__)) + "/", "<frozen importlib")
"""How the files of this runtime and of the import system begin."""
LOOP = os.path.dirname(os.path.dirname(json.__file__)) + "/asyncio/"
MAX_NAMES = 100
MAX_STACK = 50
"""The most frames of a stack that are sent, the innermost; and as many lines of what the error came from, or consists of."""
MAX_LINE = 1000
"""Characters of one of them."""
MESSAGE_BYTES = FAILED_MAX_BYTES // 2
"""Longest text of an error, as JSON; the stack has what the text leaves of a frame."""
CUT = " [cut: %d more characters]"
LEFT_OUT = "  [left out: %d lines]\n"
LEFT_OUT_CAUSES = "\n[left out: %d exceptions]\n"
MAX_CAUSE = MAX_STACK // 2
"""Lines of one exception that the error came from, of which there are many."""
CAUSE = "\nThe exception above was raised from this one:\n\n"
CONTEXT = "\nThe exception above was raised while this one was handled:\n\n"
MEMBERS = "+-+"
"""In the line of traceback's that the first member of a group begins with."""


class HandlerNotFound(Exception):
    """The entry point names a module or an attribute that is not there, or that cannot be called."""


class MarshalError(Exception):
    """The handler returned something that JSON cannot hold."""


class InvalidEvent(Exception):
    """The request's payload is not JSON."""


class NotHttp(Exception):
    """An app was given an event that is no HTTP request."""


class StartupFailed(Exception):
    """The app's lifespan says that it cannot start."""


class ReportedError(Exception):
    """An error in the words of somebody else: a program behind the Runtime API."""

    def __init__(self, kind: str, message: str, stack: list[str]) -> None:
        super().__init__(message)
        self.kind = kind
        self.stack = stack


class NotTaken(Exception):
    """The program behind the Runtime API has ended before it asked for the request."""


ERROR_TYPES: dict[type[BaseException], str] = {
    HandlerNotFound: "Runtime.HandlerNotFound",
    MarshalError: "Runtime.MarshalError",
    InvalidEvent: "InvalidRequestContentException",
}
"""AWS's names for what is not the user's own exception."""


def describe(error: BaseException) -> bytes:
    """An exception as AWS's error JSON: {errorMessage, errorType, stackTrace}, without the frames of this runtime. Behind the
    stack come its notes and the exceptions that it was raised from, or that it groups, as Python's traceback has them."""
    if type(error) is ReportedError:
        return encode(error.kind, str(error), error.stack)
    with OwnModules():
        try:
            return encoded(error)
        except Exception as failure:  # its class is such that no attribute can be read
            name = type.__dict__["__name__"].__get__(type(error))
            stack = users_frames(extract_tb(BaseException.__dict__["__traceback__"].__get__(error)))
            return encode(name, f"<the error cannot be read: {type(failure).__name__}>", format_list(stack))


def encoded(error: BaseException) -> bytes:
    """Raises: whatever the error's own attributes do."""
    whole = TracebackException.from_exception(error)
    drop_our_frames(whole)
    try:
        message = str(error)
    except Exception as failure:  # the user's own __str__
        message = f"<the error's text cannot be made: {type(failure).__name__}>"
    if isinstance(error, ModuleNotFoundError):
        message += f" ({installed()})"
    elif type(error) in suggestions.KINDS:
        message += suggestions.suggestion(error, message, whole)
    kind = ERROR_TYPES.get(type(error), type(error).__name__)
    place, notes = place_and_notes(whole)
    lines, root = related(whole)
    return encode(kind, message, [*whole.stack.format(), *place], [*notes, *lines], root)


def place_and_notes(whole: TracebackException) -> tuple[list[str], list[str]]:
    """What Python's traceback has before and after the line with type and text: file, line and source of a SyntaxError; notes."""
    lines = list(whole.format_exception_only())
    notes, whole.__notes__ = whole.__notes__, None
    without = list(whole.format_exception_only())
    whole.__notes__ = notes
    return without[:-1], lines[len(without) :]


def drop_our_frames(whole: TracebackException) -> None:
    """Keep the user's frames, in the stacks of all exceptions that belong to it."""
    left = [whole]
    while left:
        each = left.pop()
        each.stack[:] = users_frames(each.stack)
        left += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other is not None]


def users_frames(stack: Sequence[FrameSummary]) -> list[FrameSummary]:
    """Without those of this runtime and of the import system, nor those of the event loop that this runtime runs."""
    frames, is_ours = [], False
    for frame in stack:
        is_ours = frame.filename.startswith(OURS) or (is_ours and frame.filename.startswith(LOOP))
        if not is_ours:
            frames.append(frame)
    return frames


def related(whole: TracebackException) -> tuple[list[str], list[str]]:
    """The exceptions that it groups and those that it came from, as lines; and those of the first of all, the root."""
    lines, root = origin(whole)
    return [*members(whole), *lines], root


def members(whole: TracebackException) -> list[str]:
    """The exceptions of a group, as lines; of which there are none if it is no group."""
    if not whole.exceptions:
        return []
    lines = "".join(whole.format(chain=False)).splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if MEMBERS in line)
    return lines[first:]


def origin(whole: TracebackException) -> tuple[list[str], list[str]]:
    """The exceptions that it was raised from, or while that was handled, and so on, as lines: as many as MAX_STACK lines have,
    and the last."""
    others = list(causes(whole))
    if not others:
        return [], []
    last = cause_lines(*others.pop())
    lines: list[str] = []
    for number, other in enumerate(others):
        found = cause_lines(*other)
        if len(lines) + len(found) + len(last) >= MAX_STACK:
            lines.append(LEFT_OUT_CAUSES % (len(others) - number))
            break
        lines += found
    return lines, last


def causes(whole: TracebackException) -> Iterator[tuple[str, TracebackException]]:
    """Each exception that it came from, with the heading above it."""
    while True:
        heading, other = CAUSE, whole.__cause__
        if other is None and not whole.__suppress_context__:
            heading, other = CONTEXT, whole.__context__
        if other is None:
            return
        yield heading, other
        whole = other


def cause_lines(heading: str, cause: TracebackException) -> list[str]:
    """Heading and text, of a long one the end, where it was raised."""
    lines = list(cause.format(chain=False))
    if len(lines) > MAX_CAUSE:
        lines = [LEFT_OUT % (len(lines) - MAX_CAUSE), *lines[-MAX_CAUSE:]]
    return [heading, *lines]


def encode(kind: str, message: str, stack: Sequence[str], more: Sequence[str] = (), root: Sequence[str] = ()) -> bytes:
    """AWS's error JSON, cut to FAILED_MAX_BYTES with a mark where something is missing.

    Args: more: lines to follow the stack; root: and these behind them, which are left out last."""
    answer = {"errorMessage": cut(message), "errorType": kind[:200], "stackTrace": []}
    room = FAILED_MAX_BYTES - len(dumps(answer)) - 3 * (len(LEFT_OUT) + 20)
    # Where it was raised comes last, and is never left out first.
    innermost, room = within(room, list(reversed(stack)))
    last, room = within(room, root)
    lines, _ = within(room, more)
    answer["stackTrace"] = innermost[::-1] + lines + last
    return dumps(answer).encode()


def within(room: int, lines: Sequence[str]) -> tuple[list[str], int]:
    """The first MAX_STACK lines, as far as there is room, with a mark if that is not all; and the bytes that are left."""
    kept: list[str] = []
    for line in lines[:MAX_STACK]:
        line = line[:MAX_LINE]
        room -= len(dumps(line)) + 2
        if room < 0:
            break
        kept.append(line)
    if len(kept) < len(lines):
        kept.append(LEFT_OUT % (len(lines) - len(kept)))
    return kept, max(0, room)


def cut(text: str) -> str:
    """A text whose JSON has MESSAGE_BYTES at most."""
    kept = text[:MESSAGE_BYTES]
    while len(dumps(kept)) > MESSAGE_BYTES - len(CUT) - 20:
        kept = kept[: len(kept) * 3 // 4]
    return text if kept == text else kept + CUT % (len(text) - len(kept))


_in_image = False


def become_images() -> None:
    """From now on this process runs a function of an image, whose packages are not ours."""
    global _in_image
    _in_image = True


def installed() -> str:
    """Describe the packages that this function has, for the message about a missing one."""
    paths = [path.split("/") for path in sys.path if isinstance(path, str) and path.startswith("/packages/")]
    names = sorted({path[2].rpartition("-")[0] for path in paths})[:MAX_NAMES]
    if _in_image:
        return "the image does not have it"
    return (
        f"installed: {', '.join(names)}" if names else "no packages: the function declares none, as in requirements.txt"
    )


def set_handler() -> str:
    """What to do about an entry point that is not there."""
    if _in_image:
        return "name another with --handler, or with the image's CMD"
    return "set handler in sockd.toml"
