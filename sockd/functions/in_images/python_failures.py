"""Failures of an image's Python at a deploy: whether the image is the cause, which is remembered, or the worker, which is not.

Pure. What is not known to be the image's is the worker's: a wrong guess then costs another attempt, and not the function's
Zygotes.
"""

from __future__ import annotations

import os
import re

from sockd.base.errors import FunctionFailed, ImagePythonFailed, SandboxDied, SandboxFailed, SockdError, TimedOut
from sockd.images.store.full_disk import FULL, OF_HOST, passing
from sockd.isolation.farm.zygote import NeverServed

LONGEST = 300
"""The most characters of a failure's words that are reported and kept."""
SHORTAGE = re.compile(
    "|".join(
        [
            "MemoryError|out of memory|can't start new thread",
            *(f"Errno {code}\\b" for code in sorted(OF_HOST | FULL)),
            *(re.escape(os.strerror(code)) for code in sorted(OF_HOST | FULL)),
        ]
    ),
    re.IGNORECASE,
)
"""What a program says that lacks memory, descriptors or disk, which the worker gives it."""
REASON = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception)\b|Fatal Python error|\[Errno (?:2|8|13|20)\]|Error (?:loading|relocating) "
    r"|.*error while loading shared libraries)",
    re.MULTILINE,
)
"""What an interpreter says last that cannot be a Zygote: an exception, that it does not start, or that it cannot be run."""


class BadAnswer(SandboxFailed):
    """The image's Python has answered, and not as one answers."""


def is_of_image(error: SockdError | OSError) -> bool:
    """POLICY: whether a failure will be the same at each attempt and on each worker. A process that was killed tells nothing."""
    if SHORTAGE.search(words(error)):
        return False
    if isinstance(error, NeverServed):
        return REASON.search(error.said) is not None
    return isinstance(error, FunctionFailed | BadAnswer) or (isinstance(error, SandboxDied) and error.has_exited)


def of_worker(error: SockdError | OSError) -> SockdError:
    """The error of a deploy for a failure that is not the image's."""
    if (trouble := passing(error)) is not None:
        return trouble
    if isinstance(error, SockdError) and not isinstance(error, SandboxFailed | SandboxDied | FunctionFailed | TimedOut):
        return error.again()
    return ImagePythonFailed(words(error))


def words(error: SockdError | OSError) -> str:
    """What it says, bounded."""
    return (getattr(error, "message", "") or str(error) or "it did not answer")[:LONGEST]
